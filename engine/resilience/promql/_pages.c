/* Pages of a recording (Parquet): LZ4 blocks, levels and lists of numbers, read into place. Input
 * is never trusted: every function stops with an error before it would read or write outside. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include "_pages.h"

#define STALE_BITS INT64_C(0x7ff0000000000002)
#define ABSENT_BITS INT64_C(0x7ff0000000000003)
/* Levels of `list<number>`: an empty or null list, a null number, a number. */
enum { NO_NUMBER = 2, NUMBER = 3 };

static PyObject *damaged(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* --- LZ4 block format ------------------------------------------------------------------------- */

static const uint8_t *length(const uint8_t *p, const uint8_t *end, size_t *n) {
    uint8_t more;
    do {
        if (p >= end) return NULL;
        more = *p++;
        *n += more;
    } while (more == 255);
    return p;
}

static inline void copy_literals(uint8_t *out, const uint8_t *p, size_t n, size_t room) {
    if (n <= 16 && room >= 16) memcpy(out, p, 16); /* one instruction; what is too much is rewritten */
    else memcpy(out, p, n);
}

/* Repeat what lies `offset` before: a pattern that doubles with each copy. */
static void copy_match(uint8_t *out, size_t offset, size_t n) {
    const uint8_t *from = out - offset;
    if (offset == 1) {
        memset(out, *from, n);
        return;
    }
    while (n > offset) {
        memcpy(out, from, offset);
        out += offset;
        n -= offset;
        offset *= 2;
    }
    memcpy(out, from, n);
}

static int unpack_lz4(const uint8_t *p, const uint8_t *end, uint8_t *out, uint8_t *out_end) {
    const uint8_t *start = out;
    while (p < end) {
        unsigned token = *p++;
        size_t n = token >> 4;
        if (n == 15 && (p = length(p, end, &n)) == NULL) return -1;
        if (n > (size_t)(end - p) || n > (size_t)(out_end - out)) return -1;
        size_t room = (size_t)(out_end - out) < (size_t)(end - p) ? out_end - out : end - p;
        copy_literals(out, p, n, room);
        p += n;
        out += n;
        if (p == end) return out == out_end ? 0 : -1;
        if (end - p < 2) return -1;
        size_t offset = p[0] | (size_t)p[1] << 8;
        p += 2;
        n = token & 15;
        if (n == 15 && (p = length(p, end, &n)) == NULL) return -1;
        n += 4;
        if (!offset || offset > (size_t)(out - start) || n > (size_t)(out_end - out)) return -1;
        if (n <= 16 && offset >= 16 && out_end - out >= 16) memcpy(out, out - offset, 16);
        else copy_match(out, offset, n);
        out += n;
    }
    return -1;
}

/* lz4(source, target): unpack one block that fills `target` exactly. */
PyObject *pages_lz4(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer source, target;
    if (nargs != 2) return damaged("lz4: two arguments");
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &target, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&source);
        return NULL;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS
    const uint8_t *p = source.buf;
    uint8_t *out = target.buf;
    failed = unpack_lz4(p, p + source.len, out, out + target.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (failed) return damaged("a compressed page is damaged");
    Py_RETURN_NONE;
}

/* --- Thrift's compact protocol ---------------------------------------------------------------- */

enum { T_TRUE = 1, T_FALSE, T_BYTE, T_I16, T_I32, T_I64, T_DOUBLE, T_BINARY, T_LIST, T_SET,
       T_STRUCT = 12, THRIFT_DEPTH_MAX = 16 };

typedef struct {
    const uint8_t *p, *end;
} Bytes;

static int uvarint(Bytes *from, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (from->p >= from->end) return -1;
        uint8_t part = *from->p++;
        if (shift == 63 && part > 1) return -1;
        *value |= (uint64_t)(part & 127) << shift;
        if (part < 128) return 0;
    }
    return -1;
}

static PyObject *thrift_struct(Bytes *from, int depth);

static PyObject *thrift_number(Bytes *from) {
    uint64_t raw;
    if (uvarint(from, &raw) < 0) return damaged("a number is cut");
    return PyLong_FromLongLong((int64_t)(raw >> 1) ^ -(int64_t)(raw & 1));
}

static PyObject *thrift_bytes(Bytes *from, uint64_t size) {
    if (size > (uint64_t)(from->end - from->p)) return damaged("a text reaches over the end");
    PyObject *made = PyBytes_FromStringAndSize((const char *)from->p, (Py_ssize_t)size);
    from->p += size;
    return made;
}

static PyObject *thrift_list(Bytes *from, int depth);

static PyObject *thrift_value(Bytes *from, int kind, int depth) {
    uint64_t size;
    switch (kind) {
    case T_I16: case T_I32: case T_I64: return thrift_number(from);
    case T_BINARY:
        if (uvarint(from, &size) < 0) return damaged("a text is cut");
        return thrift_bytes(from, size);
    case T_STRUCT: return thrift_struct(from, depth + 1);
    case T_LIST: case T_SET: return thrift_list(from, depth);
    case T_TRUE: case T_FALSE: case T_BYTE: /* in a list each takes a byte */
        if (from->p >= from->end) return damaged("a byte is cut");
        return PyLong_FromLong(*from->p++);
    case T_DOUBLE: return thrift_bytes(from, 8);
    default: return damaged("a value of unknown type");
    }
}

static PyObject *thrift_list(Bytes *from, int depth) {
    if (depth > THRIFT_DEPTH_MAX) return damaged("nested too deeply");
    if (from->p >= from->end) return damaged("a list is cut");
    int head = *from->p++;
    uint64_t size = (uint64_t)head >> 4;
    if (size == 15 && uvarint(from, &size) < 0) return damaged("a list is cut");
    if (size > (uint64_t)(from->end - from->p)) return damaged("a list reaches over the end");
    PyObject *made = PyList_New(0); /* grown by what is there, not by what is claimed */
    for (uint64_t i = 0; made != NULL && i < size; i++) {
        PyObject *value = thrift_value(from, head & 15, depth + 1);
        if (value == NULL || PyList_Append(made, value) < 0) Py_CLEAR(made);
        Py_XDECREF(value);
    }
    return made;
}

/* Put one field into the dictionary `to`; 0 at the end of the struct, -1 on an error. */
static int thrift_field(Bytes *from, int64_t *field, PyObject *to, int depth) {
    if (from->p >= from->end) return damaged("a struct is cut"), -1;
    int head = *from->p++, kind = head & 15;
    if (!head) return 0;
    uint64_t raw;
    if (head >> 4) *field += head >> 4;
    else if (uvarint(from, &raw) < 0) return damaged("a number is cut"), -1;
    else *field = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    PyObject *value = kind == T_TRUE || kind == T_FALSE ? PyBool_FromLong(kind == T_TRUE)
                                                        : thrift_value(from, kind, depth);
    PyObject *key = PyLong_FromLongLong(*field);
    int failed = value == NULL || key == NULL || PyDict_SetItem(to, key, value) < 0;
    Py_XDECREF(value);
    Py_XDECREF(key);
    return failed ? -1 : 1;
}

static PyObject *thrift_struct(Bytes *from, int depth) {
    if (depth > THRIFT_DEPTH_MAX) return damaged("nested too deeply");
    PyObject *made = PyDict_New();
    int64_t field = 0;
    int more = made == NULL ? -1 : 1;
    while (more > 0) more = thrift_field(from, &field, made, depth);
    if (more < 0) Py_CLEAR(made);
    return made;
}

/* thrift(source, start) -> (the struct there, field number -> value; where it ends) */
PyObject *pages_thrift(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer source;
    if (nargs != 2) return damaged("thrift: two arguments");
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred()) return NULL;
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *made = NULL;
    if (start < 0 || start > source.len) damaged("thrift: a start outside");
    else {
        Bytes from = {(const uint8_t *)source.buf + start, (const uint8_t *)source.buf + source.len};
        made = thrift_struct(&from, 0);
        start = from.p - (const uint8_t *)source.buf;
    }
    PyBuffer_Release(&source);
    return made == NULL ? NULL : Py_BuildValue("(Nn)", made, start);
}

/* --- runs and packed bits --------------------------------------------------------------------- */

static const uint8_t *varint(const uint8_t *p, const uint8_t *end, uint32_t *value) {
    int shift = 0;
    uint8_t part;
    *value = 0;
    do {
        if (p >= end || shift > 28) return NULL;
        part = *p++;
        *value |= (uint32_t)(part & 127) << shift;
        shift += 7;
    } while (part & 128);
    return p;
}

/* Define a reader of `count` numbers of `width` bits; it returns where they end, NULL if damaged. */
#define HYBRID(name, type)                                                                   \
    static const uint8_t *name(const uint8_t *p, const uint8_t *end, int width, type *out,   \
                               size_t count) {                                               \
        size_t bytes = ((size_t)width + 7) / 8;                                              \
        while (count) {                                                                      \
            uint32_t head;                                                                   \
            if ((p = varint(p, end, &head)) == NULL) return NULL;                            \
            size_t n = head >> 1, size = head & 1 ? n * (size_t)width : bytes;               \
            if (size > (size_t)(end - p)) return NULL;                                       \
            uint64_t bits = 0;                                                               \
            if (head & 1) {                                                                  \
                const uint8_t *at = p;                                                       \
                int have = 0;                                                                \
                if ((n *= 8) > count) n = count;                                             \
                for (size_t i = 0; i < n; i++) {                                             \
                    for (; have < width; have += 8) bits |= (uint64_t)*at++ << have;         \
                    out[i] = (type)(bits & ((UINT64_C(1) << width) - 1));                    \
                    bits >>= width;                                                          \
                    have -= width;                                                           \
                }                                                                            \
            } else {                                                                         \
                if (n > count) n = count;                                                    \
                for (size_t i = 0; i < bytes; i++) bits |= (uint64_t)p[i] << (8 * i);        \
                for (size_t i = 0; i < n; i++) out[i] = (type)bits;                          \
            }                                                                                \
            p += size;                                                                       \
            out += n;                                                                        \
            count -= n;                                                                      \
        }                                                                                    \
        return p;                                                                            \
    }
HYBRID(read_levels, uint8_t)
HYBRID(read_indices, int32_t)

/* hybrid(source, start, width, out int32[N] or uint8[N]) -> where the N numbers end */
PyObject *pages_hybrid(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer source, out;
    if (nargs != 4) return damaged("hybrid: four arguments");
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    long width = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[3], &out, PyBUF_WRITABLE | PyBUF_ND) < 0) {
        PyBuffer_Release(&source);
        return NULL;
    }
    Py_ssize_t stop = -1;
    if (start >= 0 && start <= source.len && width >= 0 && width <= (out.itemsize == 1 ? 8 : 31)) {
        const uint8_t *p = source.buf, *end = p + source.len;
        if (out.itemsize == 1) p = read_levels(p + start, end, (int)width, out.buf, (size_t)out.len);
        else p = read_indices(p + start, end, (int)width, out.buf, (size_t)out.len / 4);
        if (p != NULL) stop = p - (const uint8_t *)source.buf;
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&out);
    return stop < 0 ? damaged("levels or indices are damaged") : PyLong_FromSsize_t(stop);
}

/* --- lists of numbers ------------------------------------------------------------------------- */

/* The numbers of a page: one after the other, or split into eight streams of bytes. */
typedef struct {
    const uint8_t *bytes;
    size_t count;
    int split;
} Numbers;

static inline int64_t number_at(const Numbers *from, size_t k) {
    uint64_t bits = 0;
    if (!from->split) memcpy(&bits, from->bytes + 8 * k, 8);
    else
        for (int b = 0; b < 8; b++)
            bits |= (uint64_t)from->bytes[(size_t)b * from->count + k] << (8 * b);
    return (int64_t)bits;
}

#ifdef __SSE2__
/* Sixteen numbers from eight streams: bytes, then pairs, then fours side by side. */
static void join_sixteen(const uint8_t *p, size_t count, int64_t *out) {
    __m128i s[8], two[8], four[8];
    for (int b = 0; b < 8; b++) s[b] = _mm_loadu_si128((const __m128i *)(p + (size_t)b * count));
    for (int q = 0; q < 4; q++) {
        two[q] = _mm_unpacklo_epi8(s[2 * q], s[2 * q + 1]);
        two[q + 4] = _mm_unpackhi_epi8(s[2 * q], s[2 * q + 1]);
    }
    for (int half = 0; half < 2; half++)
        for (int q = 0; q < 2; q++) {
            __m128i a = two[4 * half + 2 * q], b = two[4 * half + 2 * q + 1];
            four[4 * half + q] = _mm_unpacklo_epi16(a, b);
            four[4 * half + 2 + q] = _mm_unpackhi_epi16(a, b);
        }
    __m128i *to = (__m128i *)out;
    for (int q = 0; q < 4; q++) {
        _mm_storeu_si128(to++, _mm_unpacklo_epi32(four[2 * q], four[2 * q + 1]));
        _mm_storeu_si128(to++, _mm_unpackhi_epi32(four[2 * q], four[2 * q + 1]));
    }
}
#endif

static void place(const Numbers *from, size_t k, int64_t *out, size_t n) {
    size_t i = 0;
    if (!from->split) {
        memcpy(out, from->bytes + 8 * k, 8 * n);
        return;
    }
#ifdef __SSE2__
    for (; i + 16 <= n; i += 16) join_sixteen(from->bytes + k + i, from->count, out + i);
#endif
    for (; i < n; i++) out[i] = number_at(from, k + i);
}

/* joined(source, out int64[N]): put N numbers together that are split into eight streams of bytes */
PyObject *pages_joined(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer source, out;
    if (nargs != 2) return damaged("joined: two arguments");
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &out, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&source);
        return NULL;
    }
    int fits = source.len == out.len && out.len % 8 == 0;
    if (fits) {
        Numbers from = {source.buf, (size_t)out.len / 8, 1};
        place(&from, 0, out.buf, from.count);
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&out);
    if (!fits) return damaged("numbers reach over the end");
    Py_RETURN_NONE;
}

/* Return the last place of a stale marker, -1 if there is none. */
static int64_t last_stale(const int64_t *values, size_t n) {
    int64_t any = 0;
    for (size_t i = 0; i < n; i++) any |= values[i] == STALE_BITS;
    if (any)
        while (n--)
            if (values[n] == STALE_BITS) return (int64_t)n;
    return -1;
}

typedef struct {
    int64_t rows, row, at; /* how many rows there are, the current one, how much of it is there */
    const int64_t *lengths, *starts;
    int64_t *gaps, *target, room;
} Lists;

/* Take a run of levels that belong to one list; return how many numbers it used, -1 if damaged. */
static int64_t take(Lists *to, const uint8_t *levels, size_t n, const Numbers *from, size_t k) {
    int64_t row = to->row, start = to->starts[row];
    int64_t *out = NULL;
    if (start >= 0) {
        if ((int64_t)n > to->lengths[row] - to->at || start > to->room - to->lengths[row]) return -1;
        out = to->target + start + to->at;
    }
    uint8_t other = 0;
    for (size_t i = 0; i < n; i++) other |= levels[i] ^ NUMBER;
    int64_t used = 0, gap = -1;
    if (!other) {
        used = (int64_t)n;
        if (out != NULL) {
            place(from, k, out, n);
            gap = last_stale(out, n);
        }
    } else
        for (size_t i = 0; i < n; i++) {
            if (levels[i] < NO_NUMBER) return -1;
            int64_t bits = levels[i] == NUMBER ? number_at(from, k + (size_t)used++) : ABSENT_BITS;
            if (out != NULL) out[i] = bits;
            if (bits == ABSENT_BITS || bits == STALE_BITS) gap = (int64_t)i;
        }
    if (out != NULL && gap >= 0) to->gaps[row] = to->at + gap;
    to->at += (int64_t)n;
    return used;
}

/* Whether the current row has all its numbers; of one that nobody wants it is not known. */
static int complete(const Lists *to) {
    return to->starts[to->row] < 0 || to->at == to->lengths[to->row];
}

static int take_page(Lists *to, const uint8_t *again, const uint8_t *levels, size_t count,
                     const Numbers *from) {
    size_t k = 0;
    for (size_t i = 0; i < count;) {
        if (!again[i]) {
            if (to->row >= 0 && !complete(to)) return -1;
            if (++to->row >= to->rows) return -1;
            to->at = 0;
            if (levels[i] < NO_NUMBER) {
                i++;
                continue;
            }
        } else if (to->row < 0) return -1;
        const uint8_t *next = memchr(again + i + 1, 0, count - i - 1);
        size_t n = next == NULL ? count - i : (size_t)(next - again) - i;
        int64_t used = take(to, levels + i, n, from, k);
        if (used < 0) return -1;
        k += (size_t)used;
        i += n;
    }
    return 0;
}

/* Return the bytes of a block of levels and move `*p` behind it; NULL if it does not fit. */
static const uint8_t *level_block(const uint8_t **p, const uint8_t *end, const uint8_t **stop) {
    uint32_t size;
    if (end - *p < 4) return NULL;
    memcpy(&size, *p, 4);
    const uint8_t *block = *p + 4;
    if (size > (size_t)(end - block)) return NULL;
    *p = *stop = block + size;
    return block;
}

static int read_page(Lists *to, const uint8_t *p, const uint8_t *end, size_t count, int split) {
    uint8_t *levels = malloc(2 * count + 1);
    if (levels == NULL) return -1;
    const uint8_t *stop, *block = level_block(&p, end, &stop);
    int failed = block == NULL || read_levels(block, stop, 1, levels, count) == NULL;
    if (!failed) {
        block = level_block(&p, end, &stop);
        failed = block == NULL || read_levels(block, stop, 2, levels + count, count) == NULL;
    }
    if (!failed) {
        size_t numbers = 0;
        for (size_t i = 0; i < count; i++) numbers += levels[count + i] == NUMBER;
        Numbers from = {p, numbers, split};
        failed = numbers != (size_t)(end - p) / 8 || (end - p) % 8 != 0 ||
                 take_page(to, levels, levels + count, count, &from) < 0;
    }
    free(levels);
    return failed ? -1 : 0;
}

/* lists(page, split, count, state int64[2], lengths int64[R], starts int64[R], gaps int64[R],
 * target float64[N]): put the numbers of one page of lists where their rows begin in `target`
 * (-1: nowhere). `state` is the current row and how much of it is there; it begins as (-1, 0). */
PyObject *pages_lists(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer b[6];
    static const int from_argument[6] = {0, 3, 4, 5, 6, 7};
    if (nargs != 8) return damaged("lists: eight arguments");
    long split = PyLong_AsLong(args[1]);
    Py_ssize_t count = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 6; i++) {
        int writable = i == 1 || i >= 4;
        if (PyObject_GetBuffer(args[from_argument[i]], &b[i], writable ? PyBUF_WRITABLE : 0) < 0) {
            while (i--) PyBuffer_Release(&b[i]);
            return NULL;
        }
    }
    int failed = count < 0 || b[1].len < 16 || b[3].len < b[2].len || b[4].len < b[2].len;
    if (!failed) {
        int64_t *state = b[1].buf;
        Lists to = {b[2].len / 8, state[0], state[1], b[2].buf, b[3].buf, b[4].buf, b[5].buf,
                    b[5].len / 8};
        failed = to.row < -1 || to.row >= to.rows || to.at < 0;
        Py_BEGIN_ALLOW_THREADS
        const uint8_t *page = b[0].buf;
        if (!failed) failed = read_page(&to, page, page + b[0].len, (size_t)count, (int)split) < 0;
        Py_END_ALLOW_THREADS
        state[0] = to.row;
        state[1] = to.at;
    }
    for (int i = 0; i < 6; i++) PyBuffer_Release(&b[i]);
    if (failed) return damaged("values do not fit the times of their group");
    Py_RETURN_NONE;
}
