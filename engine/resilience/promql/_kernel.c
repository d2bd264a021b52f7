/* The inner loops of range queries, for those who have a C compiler: optional, and exactly what
 * the NumPy code in overtime.py, regression.py, rates.py and aggregate.py computes. Arrays are
 * float64 or int64; rows may be strided, elements of a row are adjacent. No -ffast-math: sums are
 * Neumaier's, and the order of additions is Prometheus'. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "_pages.h"

typedef struct {
    Py_buffer view;
    char *base;
    Py_ssize_t rows, columns, stride;
} Array;

/* Borrow a one- or two-dimensional array; every element 8 bytes, rows of adjacent elements. */
static int borrow(PyObject *object, Array *array, int writable) {
    int flags = writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO;
    if (PyObject_GetBuffer(object, &array->view, flags) < 0) return -1;
    Py_buffer *v = &array->view;
    int last = v->ndim - 1;
    if (v->ndim < 1 || v->ndim > 2 || v->itemsize != 8 ||
        (v->shape[last] > 1 && v->strides[last] != 8)) {
        PyBuffer_Release(v);
        PyErr_SetString(PyExc_ValueError, "rows of adjacent 8-byte elements are needed");
        return -1;
    }
    array->base = v->buf;
    array->rows = v->ndim == 2 ? v->shape[0] : 1;
    array->columns = v->shape[last];
    array->stride = v->ndim == 2 ? v->strides[0] : 0;
    return 0;
}

static double *doubles(const Array *a, Py_ssize_t row) { return (double *)(a->base + row * a->stride); }
static int64_t *integers(const Array *a) { return (int64_t *)a->base; }

static int borrow_all(PyObject *const *objects, Array *arrays, int count, int first_output) {
    for (int i = 0; i < count; i++) {
        if (borrow(objects[i], &arrays[i], i >= first_output) < 0) {
            while (i--) PyBuffer_Release(&arrays[i].view);
            return -1;
        }
    }
    return 0;
}

static void release_all(Array *arrays, int count) {
    while (count--) PyBuffer_Release(&arrays[count].view);
}

static inline void neumaier(double inc, double *sum, double *c) {
    double t = *sum + inc;
    if (isinf(t)) *c = 0;
    else if (fabs(*sum) >= fabs(inc)) *c += (*sum - t) + inc;
    else *c += (inc - t) + *sum;
    *sum = t;
}

#define ENTER(count, first_output, name)                                             \
    Array a[count];                                                                  \
    if (nargs != count) { PyErr_SetString(PyExc_TypeError, name ": arguments"); return NULL; } \
    if (borrow_all(args, a, count, first_output) < 0) return NULL;                   \
    Py_BEGIN_ALLOW_THREADS

#define LEAVE(count)        \
    Py_END_ALLOW_THREADS    \
    release_all(a, count);  \
    Py_RETURN_NONE;

/* window_mean(values[S,T], lo[K], hi[K], sum[S,K], mean[S,K]) */
static PyObject *window_sums(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(5, 3, "window_sums")
    int64_t *lo = integers(&a[1]), *hi = integers(&a[2]);
    for (Py_ssize_t s = 0; s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *sums = doubles(&a[3], s), *means = doubles(&a[4], s);
        for (Py_ssize_t k = 0; k < a[1].columns; k++) {
            double sum = 0, c = 0, mean = 0, count = 0, total = 0, total_c = 0;
            int incremental = 0;
            for (int64_t j = lo[k]; j < hi[k]; j++) {
                count += 1;
                neumaier(v[j], &total, &total_c);
                if (!incremental) {
                    if (count == 1 || !isinf(total)) { sum = total; c = total_c; continue; }
                    incremental = 1;
                    mean = sum / (count - 1);
                    c /= count - 1;
                }
                double q = (count - 1) / count;
                mean *= q;
                c *= q;
                neumaier(v[j] / count, &mean, &c);
            }
            sums[k] = total + total_c;
            means[k] = incremental ? mean + c : sum / count + c / count;
        }
    }
    LEAVE(5)
}

/* window_variance(values[S,T], lo[K], hi[K], variance[S,K]) */
static PyObject *window_variance(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(4, 3, "window_variance")
    int64_t *lo = integers(&a[1]), *hi = integers(&a[2]);
    for (Py_ssize_t s = 0; s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *out = doubles(&a[3], s);
        for (Py_ssize_t k = 0; k < a[1].columns; k++) {
            double mean = 0, cm = 0, aux = 0, ca = 0, count = 0;
            for (int64_t j = lo[k]; j < hi[k]; j++) {
                count += 1;
                double delta = v[j] - (mean + cm);
                neumaier(delta / count, &mean, &cm);
                neumaier(delta * (v[j] - (mean + cm)), &aux, &ca);
            }
            out[k] = (aux + ca) / count;
        }
    }
    LEAVE(4)
}

/* Four sums side by side: x, y, x * y, x * x. */
typedef double quad __attribute__((vector_size(32)));

static int finite4(quad q) {
    return isfinite(q[0]) && isfinite(q[1]) && isfinite(q[2]) && isfinite(q[3]);
}

/* The same sums as Prometheus adds them when something overflows. */
static void fit_slowly(const double *v, const int64_t *times, int64_t lo, int64_t hi,
                       int64_t origin, quad *sum, quad *c) {
    double s[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
    for (int64_t j = lo; j < hi; j++) {
        double x = (double)(times[j] - origin) / 1e3, y = v[j];
        double terms[4] = {x, y, x * y, x * x};
        for (int i = 0; i < 4; i++) neumaier(terms[i], &s[i], &e[i]);
    }
    for (int i = 0; i < 4; i++) { (*sum)[i] = s[i]; (*c)[i] = e[i]; }
}

/* window_fit(values[S,T], times[T], lo[K], hi[K], origin[K], slope[S,K], intercept[S,K]) */
static PyObject *window_fit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(7, 5, "window_fit")
    int64_t *times = integers(&a[1]), *lo = integers(&a[2]), *hi = integers(&a[3]);
    int64_t *origin = integers(&a[4]);
    for (Py_ssize_t s = 0; s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *slopes = doubles(&a[5], s), *levels = doubles(&a[6], s);
        for (Py_ssize_t k = 0; k < a[2].columns; k++) {
            if (hi[k] - lo[k] < 2) { slopes[k] = levels[k] = 0; continue; }
            quad sum = {0, 0, 0, 0}, c = {0, 0, 0, 0};
            double first = v[lo[k]], n = (double)(hi[k] - lo[k]);
            int constant = 1;
            for (int64_t j = lo[k]; j < hi[k]; j++) {
                double y = v[j], x = (double)(times[j] - origin[k]) / 1e3;
                constant &= y == first;
                quad term = {x, y, x * y, x * x};
                quad t = sum + term, part = t - sum;
                c += (sum - (t - part)) + (term - part);
                sum = t;
            }
            if (!constant && !finite4(sum)) fit_slowly(v, times, lo[k], hi[k], origin[k], &sum, &c);
            if (constant) {
                slopes[k] = isinf(first) ? NAN : 0;
                levels[k] = isinf(first) ? NAN : first;
                continue;
            }
            sum += c;
            double sx = sum[0], sy = sum[1], sxy = sum[2], sx2 = sum[3];
            double covariance = sxy - sx * sy / n, variance = sx2 - sx * sx / n;
            slopes[k] = covariance / variance;
            levels[k] = sy / n - slopes[k] * sx / n;
        }
    }
    LEAVE(7)
}

/* Bring the element of rank `k` to its place; smaller ones before it. No NaN. */
static double select_rank(double *v, int64_t n, int64_t k) {
    int64_t left = 0, right = n - 1;
    while (left < right) {
        double pivot = v[(left + right) / 2];
        int64_t i = left, j = right;
        while (i <= j) {
            while (v[i] < pivot) i++;
            while (v[j] > pivot) j--;
            if (i <= j) { double t = v[i]; v[i] = v[j]; v[j] = t; i++; j--; }
        }
        if (k <= j) right = j;
        else if (k >= i) left = i;
        else break;
    }
    return v[k];
}

/* window_quantile(values[S,T], lo[K], hi[K], q[K], out[S,K]); NaN comes first. */
static PyObject *window_quantile(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(5, 4, "window_quantile")
    int64_t *lo = integers(&a[1]), *hi = integers(&a[2]), longest = 1;
    double *q = doubles(&a[3], 0);
    for (Py_ssize_t k = 0; k < a[1].columns; k++) if (hi[k] - lo[k] > longest) longest = hi[k] - lo[k];
    double *work = malloc(sizeof(double) * (size_t)longest);
    for (Py_ssize_t s = 0; work && s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *out = doubles(&a[4], s);
        for (Py_ssize_t k = 0; k < a[1].columns; k++) {
            int64_t n = hi[k] - lo[k], m = 0;
            out[k] = NAN;
            if (n < 1 || isnan(q[k])) continue;
            if (q[k] < 0 || q[k] > 1) { out[k] = q[k] < 0 ? -INFINITY : INFINITY; continue; }
            for (int64_t j = lo[k]; j < hi[k]; j++) if (!isnan(v[j])) work[m++] = v[j];
            int64_t nans = n - m;
            double rank = q[k] * ((double)n - 1), floor_rank = floor(rank);
            double weight = rank - floor_rank;
            int64_t low = (int64_t)fmax(0, floor_rank), high = low + 1 < n - 1 ? low + 1 : n - 1;
            double upper = high < nans ? NAN : select_rank(work, m, high - nans);
            double lower = upper;
            if (low < nans) lower = NAN;
            else if (low != high) {
                lower = work[0];
                for (int64_t j = 1; j < high - nans; j++) if (work[j] > lower) lower = work[j];
            }
            out[k] = lower * (1 - weight) + upper * weight;
        }
    }
    free(work);
    LEAVE(5)
}

/* rates(values[S,T], lo[K], hi[K], start[K], end[K], sampled[K], factor[K], range[1], out[S,K]):
 * extrapolated increases of counters; range[0] > 0 divides by so many seconds. 0 without two samples. */
static PyObject *rates(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(9, 8, "rates")
    int64_t *lo = integers(&a[1]), *hi = integers(&a[2]);
    double *start = doubles(&a[3], 0), *end = doubles(&a[4], 0), *sampled = doubles(&a[5], 0);
    double *factor = doubles(&a[6], 0), range = doubles(&a[7], 0)[0];
    Py_ssize_t columns = a[0].columns;
    int64_t *falls = malloc(sizeof(int64_t) * (size_t)(columns + 1));
    for (Py_ssize_t s = 0; falls && s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *out = doubles(&a[8], s);
        int64_t count = 0, begin = 0;
        for (Py_ssize_t j = 1; j < columns; j++) if (v[j] < v[j - 1]) falls[count++] = j;
        for (Py_ssize_t k = 0; k < a[1].columns; k++) {
            if (hi[k] - lo[k] < 2) { out[k] = 0; continue; }
            double first = v[lo[k]], delta = v[hi[k] - 1] - first, f = factor[k];
            while (begin < count && falls[begin] <= lo[k]) begin++;
            for (int64_t i = begin; i < count && falls[i] < hi[k]; i++) delta += v[falls[i] - 1];
            if (delta > 0 && first >= 0) {
                double zero = sampled[k] * (first / delta);
                if (zero < start[k]) f = (sampled[k] + zero + end[k]) / sampled[k];
            }
            if (range > 0) f /= range;
            out[k] = delta * f;
        }
    }
    free(falls);
    LEAVE(9)
}

/* group_sums(values[S,K], rows[R], first[N+1], group[N], sum[G,K], c[G,K]): add the rows
 * first[n] … first[n+1]-1, in order, to sum and compensation of group[n]. Two-sums without
 * branches; infinities are left to the caller, as in compensated.Running. */
static PyObject *group_sums(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(6, 4, "group_sums")
    int64_t *rows = integers(&a[1]), *first = integers(&a[2]), *group = integers(&a[3]);
    Py_ssize_t columns = a[0].columns;
    for (Py_ssize_t n = 0; n < a[3].columns; n++) {
        double *restrict sum = doubles(&a[4], group[n]), *restrict c = doubles(&a[5], group[n]);
        for (int64_t i = first[n]; i < first[n + 1]; i++) {
            const double *restrict v = doubles(&a[0], rows[i]);
            for (Py_ssize_t k = 0; k < columns; k++) {
                double t = sum[k] + v[k], part = t - sum[k];
                c[k] += (sum[k] - (t - part)) + (v[k] - part);
                sum[k] = t;
            }
        }
    }
    LEAVE(6)
}

static int almost_equal(double a, double b) {
    if (a == b || (isnan(a) && isnan(b))) return 1;
    double size = fabs(a) + fabs(b), difference = fabs(a - b);
    if (a == 0 || b == 0 || size < 2.2250738585072014e-308)
        return difference < 1e-12 * 2.2250738585072014e-308;
    return difference / fmin(size, 1.7976931348623157e308) < 1e-12;
}

/* bucket_quantile(values[S,K], rows[H*B], bounds[B], q[K], out[H,K]): the bounds rise, differ and
 * end with +Inf; there are at least two. */
static PyObject *bucket_quantile(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(5, 4, "bucket_quantile")
    int64_t *rows = integers(&a[1]), count = a[2].columns;
    double *bounds = doubles(&a[2], 0), *q = doubles(&a[3], 0);
    double *counts = malloc(sizeof(double) * (size_t)count);
    const double **lines = malloc(sizeof(double *) * (size_t)count);
    for (Py_ssize_t h = 0; counts && lines && h < a[4].rows; h++) {
        double *out = doubles(&a[4], h);
        for (int64_t i = 0; i < count; i++) lines[i] = doubles(&a[0], rows[h * count + i]);
        for (Py_ssize_t k = 0; k < a[4].columns; k++) {
            if (isnan(q[k])) { out[k] = NAN; continue; }
            if (q[k] < 0 || q[k] > 1) { out[k] = q[k] < 0 ? -INFINITY : INFINITY; continue; }
            double previous = counts[0] = lines[0][k];
            for (int64_t i = 1; i < count; i++) {
                double current = lines[i][k];
                if (current != previous && (almost_equal(previous, current) || current < previous))
                    current = previous;
                counts[i] = previous = current;
            }
            double total = counts[count - 1], rank = q[k] * total;
            if (total == 0) { out[k] = NAN; continue; }
            int64_t low = 0, high = count - 1;
            while (low < high) {
                int64_t middle = (low + high) / 2;
                if (counts[middle] >= rank) high = middle; else low = middle + 1;
            }
            if (low == count - 1) { out[k] = bounds[count - 2]; continue; }
            if (low == 0 && bounds[0] <= 0) { out[k] = bounds[0]; continue; }
            double start = 0, inside = counts[low];
            if (low > 0) { start = bounds[low - 1]; inside -= counts[low - 1]; rank -= counts[low - 1]; }
            out[k] = start + (bounds[low] - start) * (rank / inside);
        }
    }
    free(counts);
    free(lines);
    LEAVE(5)
}

static PyMethodDef methods[] = {
    {"window_sums", (PyCFunction)(void (*)(void))window_sums, METH_FASTCALL, NULL},
    {"window_variance", (PyCFunction)(void (*)(void))window_variance, METH_FASTCALL, NULL},
    {"window_fit", (PyCFunction)(void (*)(void))window_fit, METH_FASTCALL, NULL},
    {"window_quantile", (PyCFunction)(void (*)(void))window_quantile, METH_FASTCALL, NULL},
    {"rates", (PyCFunction)(void (*)(void))rates, METH_FASTCALL, NULL},
    {"bucket_quantile", (PyCFunction)(void (*)(void))bucket_quantile, METH_FASTCALL, NULL},
    {"group_sums", (PyCFunction)(void (*)(void))group_sums, METH_FASTCALL, NULL},
    {"lz4", (PyCFunction)(void (*)(void))pages_lz4, METH_FASTCALL, NULL},
    {"thrift", (PyCFunction)(void (*)(void))pages_thrift, METH_FASTCALL, NULL},
    {"hybrid", (PyCFunction)(void (*)(void))pages_hybrid, METH_FASTCALL, NULL},
    {"lists", (PyCFunction)(void (*)(void))pages_lists, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

/* Whether this processor has what the compiler was allowed to use: a copied file must not crash. */
static int
runs_here(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
#ifdef __AVX512F__
    if (!__builtin_cpu_supports("avx512f"))
        return 0;
#endif
#ifdef __AVX2__
    if (!__builtin_cpu_supports("avx2"))
        return 0;
#endif
#ifdef __BMI2__
    if (!__builtin_cpu_supports("bmi2"))
        return 0;
#endif
#endif
    return 1;
}

PyMODINIT_FUNC
PyInit__kernel(void)
{
    if (!runs_here()) {
        PyErr_SetString(PyExc_ImportError, "compiled for another processor");
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    /* Raise it, here and in kernel.py, with every change of a function's arguments or meaning. */
    if (made != NULL && PyModule_AddIntConstant(made, "FORMAT", 4) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
