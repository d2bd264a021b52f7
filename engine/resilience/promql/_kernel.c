/* The inner loops of range queries, for those who have a C compiler: optional, and exactly what
 * the NumPy code in overtime.py, regression.py, rates.py and aggregate.py computes. Arrays are
 * float64 or int64; rows may be strided, elements of a row are adjacent. No -ffast-math: sums are
 * Neumaier's, and the order of additions is Prometheus'. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "_labels.h"
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

/* Four windows side by side. */
typedef double quad __attribute__((vector_size(32)));
typedef int64_t mask __attribute__((vector_size(32)));

static inline void two_sum(quad term, quad *sum, quad *c) {
    quad t = *sum + term, part = t - *sum;
    *c += (*sum - (t - part)) + (term - part);
    *sum = t;
}

/* The sums of one window, of x, y, x * y and x * x, and their compensations. */
typedef struct {
    double sum[4], c[4];
} Sums;

static void add_one(Sums *to, double x, double y) {
    double terms[4] = {x, y, x * y, x * x};
    for (int i = 0; i < 4; i++) {
        double t = to->sum[i] + terms[i], part = t - to->sum[i];
        to->c[i] += (to->sum[i] - (t - part)) + (terms[i] - part);
        to->sum[i] = t;
    }
}

/* Add the first `n` samples of four windows; `same` is cleared where one differs from the first. */
static void add_four(const double *v, const double *times, const int64_t *lo, const double *origin,
                     int64_t n, Sums *to, int64_t *same) {
    const double *y0 = v + lo[0], *y1 = v + lo[1], *y2 = v + lo[2], *y3 = v + lo[3];
    const double *t0 = times + lo[0], *t1 = times + lo[1], *t2 = times + lo[2], *t3 = times + lo[3];
    quad start = {origin[0], origin[1], origin[2], origin[3]}, first = {*y0, *y1, *y2, *y3};
    quad sx = {0}, sy = {0}, sxy = {0}, sxx = {0}, cx = {0}, cy = {0}, cxy = {0}, cxx = {0};
    mask equal = {-1, -1, -1, -1};
    for (int64_t i = 0; i < n; i++) {
        quad y = {y0[i], y1[i], y2[i], y3[i]}, x = {t0[i], t1[i], t2[i], t3[i]};
        x = (x - start) / 1e3;
        equal &= y == first;
        two_sum(x, &sx, &cx);
        two_sum(y, &sy, &cy);
        two_sum(x * y, &sxy, &cxy);
        two_sum(x * x, &sxx, &cxx);
    }
    for (int w = 0; w < 4; w++) {
        to[w] = (Sums){{sx[w], sy[w], sxy[w], sxx[w]}, {cx[w], cy[w], cxy[w], cxx[w]}};
        same[w] = equal[w];
    }
}

/* The same sums as Prometheus adds them when something overflows. */
static void fit_slowly(const double *v, const double *times, int64_t lo, int64_t hi, double origin,
                       Sums *to) {
    *to = (Sums){{0}, {0}};
    for (int64_t j = lo; j < hi; j++) {
        double x = (times[j] - origin) / 1e3, y = v[j];
        double terms[4] = {x, y, x * y, x * x};
        for (int i = 0; i < 4; i++) neumaier(terms[i], &to->sum[i], &to->c[i]);
    }
}

static void line_of(const Sums *of, double n, double *slope, double *level) {
    double sx = of->sum[0] + of->c[0], sy = of->sum[1] + of->c[1];
    double sxy = of->sum[2] + of->c[2], sxx = of->sum[3] + of->c[3];
    double covariance = sxy - sx * sy / n, variance = sxx - sx * sx / n;
    *slope = covariance / variance;
    *level = sy / n - *slope * sx / n;
}

/* Fit the windows k … k+3, or as many as there are, to one series. */
static void fit_four(const double *v, const double *times, const int64_t *lo, const int64_t *hi,
                     const double *origin, int count, double *slopes, double *levels) {
    Sums sums[4] = {{{0}, {0}}};
    int64_t same[4] = {-1, -1, -1, -1}, shared = 0;
    if (count == 4) {
        shared = hi[0] - lo[0];
        for (int w = 1; w < 4; w++) if (hi[w] - lo[w] < shared) shared = hi[w] - lo[w];
        if (shared > 0) add_four(v, times, lo, origin, shared, sums, same);
    }
    for (int w = 0; w < count; w++) {
        if (hi[w] - lo[w] < 2) { slopes[w] = levels[w] = 0; continue; }
        double first = v[lo[w]];
        for (int64_t j = lo[w] + shared; j < hi[w]; j++) {
            same[w] &= -(int64_t)(v[j] == first);
            add_one(&sums[w], (times[j] - origin[w]) / 1e3, v[j]);
        }
        if (same[w]) {
            slopes[w] = isinf(first) ? NAN : 0;
            levels[w] = isinf(first) ? NAN : first;
            continue;
        }
        int finite = 1;
        for (int i = 0; i < 4; i++) finite &= isfinite(sums[w].sum[i]) != 0;
        if (!finite) fit_slowly(v, times, lo[w], hi[w], origin[w], &sums[w]);
        line_of(&sums[w], (double)(hi[w] - lo[w]), &slopes[w], &levels[w]);
    }
}

/* window_fit(values[S,T], times[T], lo[K], hi[K], origin[K], slope[S,K], intercept[S,K]) */
static PyObject *window_fit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(7, 5, "window_fit")
    int64_t *lo = integers(&a[2]), *hi = integers(&a[3]);
    Py_ssize_t steps = a[2].columns, columns = a[1].columns;
    double *times = malloc(sizeof(double) * (size_t)(columns + steps + 1));
    /* Milliseconds of any date are exact as doubles, and so are their differences. */
    for (Py_ssize_t i = 0; times && i < columns; i++) times[i] = (double)integers(&a[1])[i];
    for (Py_ssize_t k = 0; times && k < steps; k++) times[columns + k] = (double)integers(&a[4])[k];
    for (Py_ssize_t s = 0; times && s < a[0].rows; s++)
        for (Py_ssize_t k = 0; k < steps; k += 4)
            fit_four(doubles(&a[0], s), times, lo + k, hi + k, times + columns + k,
                     steps - k < 4 ? (int)(steps - k) : 4, doubles(&a[5], s) + k,
                     doubles(&a[6], s) + k);
    free(times);
    LEAVE(7)
}

/* The samples of a window in rising order, with room for the longest one; NaN is only counted. */
typedef struct {
    double *sorted;
    int64_t count, nans;
} Ordered;

/* Return how many are less than `value`. */
static int64_t place_of(const Ordered *in, double value) {
    const double *from = in->sorted;
    for (int64_t n = in->count; n > 0;) {
        int64_t half = n / 2;
        int less = from[half] < value;
        from = less ? from + half + 1 : from;
        n = less ? n - half - 1 : half;
    }
    return from - in->sorted;
}

static void insert(Ordered *in, double value) {
    if (isnan(value)) { in->nans++; return; }
    int64_t i = in->count++;
    for (; i > 0 && in->sorted[i - 1] > value; i--) in->sorted[i] = in->sorted[i - 1];
    in->sorted[i] = value;
}

static void withdraw(Ordered *in, double value) {
    if (isnan(value)) { in->nans--; return; }
    int64_t i = place_of(in, value);
    in->count--;
    memmove(in->sorted + i, in->sorted + i + 1, sizeof(double) * (size_t)(in->count - i));
}

/* Take one sample out and another in: in its order, only what lies between them moves. */
static void exchange(Ordered *in, double old, double value) {
    if (isnan(old) || isnan(value)) {
        withdraw(in, old);
        insert(in, value);
        return;
    }
    double *at = in->sorted + place_of(in, old), *end = in->sorted + in->count;
    for (; at > in->sorted && at[-1] > value; at--) *at = at[-1];
    for (; at + 1 < end && at[1] < value; at++) *at = at[1];
    *at = value;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Move from the window [*lo, *hi) to the next: sample by sample where they overlap. */
static void slide(Ordered *in, const double *v, int64_t *lo, int64_t *hi, int64_t next_lo,
                  int64_t next_hi) {
    int64_t moves = next_lo - *lo + next_hi - *hi;
    if (next_lo >= *lo && next_hi >= *hi && next_lo < *hi && moves * 4 < next_hi - next_lo) {
        while (*lo < next_lo && *hi < next_hi) exchange(in, v[(*lo)++], v[(*hi)++]);
        while (*lo < next_lo) withdraw(in, v[(*lo)++]);
        while (*hi < next_hi) insert(in, v[(*hi)++]);
        return;
    }
    in->count = in->nans = 0;
    for (int64_t j = next_lo; j < next_hi; j++) {
        if (isnan(v[j])) in->nans++;
        else in->sorted[in->count++] = v[j];
    }
    qsort(in->sorted, (size_t)in->count, sizeof(double), rising);
    *lo = next_lo;
    *hi = next_hi;
}

/* Return the element of a rank; NaN comes first. */
static double ranked(const Ordered *in, int64_t rank) {
    return rank < in->nans ? NAN : in->sorted[rank - in->nans];
}

/* window_quantile(values[S,T], lo[K], hi[K], q[K], out[S,K]) */
static PyObject *window_quantile(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(5, 4, "window_quantile")
    int64_t *lo = integers(&a[1]), *hi = integers(&a[2]), longest = 1;
    double *q = doubles(&a[3], 0);
    for (Py_ssize_t k = 0; k < a[1].columns; k++) if (hi[k] - lo[k] > longest) longest = hi[k] - lo[k];
    Ordered in = {malloc(sizeof(double) * (size_t)longest), 0, 0};
    for (Py_ssize_t s = 0; in.sorted && s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *out = doubles(&a[4], s);
        int64_t from = 0, to = 0;
        in.count = in.nans = 0;
        for (Py_ssize_t k = 0; k < a[1].columns; k++) {
            int64_t n = hi[k] - lo[k];
            out[k] = NAN;
            if (n < 1 || isnan(q[k])) continue;
            if (q[k] < 0 || q[k] > 1) { out[k] = q[k] < 0 ? -INFINITY : INFINITY; continue; }
            slide(&in, v, &from, &to, lo[k], hi[k]);
            double rank = q[k] * ((double)n - 1), floor_rank = floor(rank);
            double weight = rank - floor_rank;
            int64_t low = (int64_t)fmax(0, floor_rank), high = low + 1 < n - 1 ? low + 1 : n - 1;
            out[k] = ranked(&in, low) * (1 - weight) + ranked(&in, high) * weight;
        }
    }
    free(in.sorted);
    LEAVE(5)
}

/* bounds(times[T], ends[K], range[1], lo[K], hi[K]): the columns of left-open windows
 * (end - range, end]. Times and ends rise. */
static PyObject *bounds(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(5, 3, "bounds")
    const int64_t *times = integers(&a[0]), *ends = integers(&a[1]), range = integers(&a[2])[0];
    int64_t *lo = integers(&a[3]), *hi = integers(&a[4]), low = 0, high = 0;
    for (Py_ssize_t k = 0; k < a[1].columns; k++) {
        if (k && ends[k] < ends[k - 1]) low = high = 0;
        while (high < a[0].columns && times[high] <= ends[k]) high++;
        while (low < a[0].columns && times[low] <= ends[k] - range) low++;
        lo[k] = low;
        hi[k] = high;
    }
    LEAVE(5)
}

/* geometry(times[T], lo[K], hi[K], ends[K], range[1], start[K], end[K], sampled[K], factor[K]):
 * seconds to add before the first and after the last sample, seconds between them, and the factor
 * of extrapolation. There is at least one time. */
static PyObject *geometry(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(9, 5, "geometry")
    const int64_t *times = integers(&a[0]), *lo = integers(&a[1]), *hi = integers(&a[2]);
    const int64_t *ends = integers(&a[3]), range = integers(&a[4])[0], top = a[0].columns - 1;
    double *start = doubles(&a[5], 0), *end = doubles(&a[6], 0);
    double *sampled = doubles(&a[7], 0), *factor = doubles(&a[8], 0);
    for (Py_ssize_t k = 0; k < a[1].columns; k++) {
        int64_t first = times[lo[k] < top ? lo[k] : top], last = times[hi[k] > 0 ? hi[k] - 1 : 0];
        start[k] = (double)(first - (ends[k] - range)) / 1e3;
        end[k] = (double)(ends[k] - last) / 1e3;
        sampled[k] = (double)(last - first) / 1e3;
        double average = sampled[k] / ((double)(hi[k] - lo[k]) - 1), far = average * 1.1;
        if (start[k] >= far) start[k] = average / 2;
        if (end[k] >= far) end[k] = average / 2;
        factor[k] = (sampled[k] + start[k] + end[k]) / sampled[k];
    }
    LEAVE(9)
}

/* What rates need of the steps, each [K]; `first` and `last` are columns within the series. */
typedef struct {
    Py_ssize_t count;
    const int64_t *lo, *hi;
    int64_t *first, *last;
    const double *start, *end, *sampled, *factor;
    double *near, *scale, range; /* start with some room; factor, by the range; 0: not by it */
} Steps;

/* Put what each step sees of a counter into `delta`, without resets; a step without two samples
 * sees nothing. */
static void differences(const double *v, const Steps *of, double *delta) {
    for (Py_ssize_t k = 0; k < of->count; k++) delta[k] = v[of->last[k]] - v[of->first[k]];
}

/* List the columns that are lower than the one before; return how many. */
static Py_ssize_t find_falls(const double *v, Py_ssize_t columns, int64_t *falls) {
    Py_ssize_t count = 0;
    for (Py_ssize_t j = 1; j < columns;) {
        Py_ssize_t stop = j + 64 < columns ? j + 64 : columns;
        int64_t any = 0;
        for (Py_ssize_t i = j; i < stop; i++) any |= v[i] < v[i - 1];
        for (Py_ssize_t i = j; any && i < stop; i++) if (v[i] < v[i - 1]) falls[count++] = i;
        j = stop;
    }
    return count;
}

/* Add the value before each fall to the steps whose windows hold it, in order of the falls. */
static void add_falls(const double *v, const int64_t *falls, Py_ssize_t count, const Steps *of,
                      double *delta) {
    Py_ssize_t begin = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t j = falls[i];
        while (begin < of->count && of->hi[begin] <= j) begin++;
        for (Py_ssize_t k = begin; k < of->count && of->lo[k] < j; k++)
            if (j < of->hi[k]) delta[k] += v[j - 1];
    }
}

/* Extrapolate one step; a counter not below zero. */
static double extrapolate(const Steps *of, Py_ssize_t k, double first, double delta) {
    double f = of->factor[k];
    if (delta > 0 && first >= 0) {
        double zero = of->sampled[k] * (first / delta);
        if (zero < of->start[k]) f = (of->sampled[k] + zero + of->end[k]) / of->sampled[k];
    }
    if (of->range > 0) f /= of->range;
    return delta * f;
}

/* Turn `out` from increases into rates. A cheap test with some room, which NaN and what underflows
 * do not pass, tells the many steps that zero is far from; the others are done one by one. */
static void extrapolate_all(const double *v, const Steps *of, double *out) {
    for (Py_ssize_t k = 0; k < of->count; k += 16) {
        Py_ssize_t n = of->count - k < 16 ? of->count - k : 16;
        double first[16], delta[16];
        int64_t close = 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            first[i] = v[of->first[k + i]];
            delta[i] = out[k + i];
        }
        for (Py_ssize_t i = 0; i < n; i++) {
            int64_t far = first[i] * of->sampled[k + i] > delta[i] * of->near[k + i] + 1e-290;
            close |= !(far | (delta[i] <= 0));
            out[k + i] = delta[i] * of->scale[k + i];
        }
        for (Py_ssize_t i = 0; close && i < n; i++) out[k + i] = extrapolate(of, k + i, first[i], delta[i]);
    }
}

/* rates(values[S,T], lo[K], hi[K], start[K], end[K], sampled[K], factor[K], range[1], out[S,K]):
 * extrapolated increases of counters; range[0] > 0 divides by so many seconds. 0 without two
 * samples. The bounds rise. */
static PyObject *rates(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    ENTER(9, 8, "rates")
    Py_ssize_t count = a[1].columns, columns = a[0].columns;
    double *work = malloc(8 * (4 * (size_t)count + (size_t)columns + 1));
    int64_t *falls = (int64_t *)work + 4 * count;
    Steps of = {count, integers(&a[1]), integers(&a[2]), (int64_t *)work, (int64_t *)work + count,
                doubles(&a[3], 0), doubles(&a[4], 0), doubles(&a[5], 0), doubles(&a[6], 0),
                work + 2 * count, work + 3 * count, doubles(&a[7], 0)[0]};
    for (Py_ssize_t k = 0; work && k < count; k++) {
        int two = of.hi[k] - of.lo[k] >= 2;
        of.first[k] = two ? of.lo[k] : 0;
        of.last[k] = two ? of.hi[k] - 1 : 0;
        of.near[k] = of.start[k] * 1.000001;
        of.scale[k] = of.range > 0 ? of.factor[k] / of.range : of.factor[k];
    }
    for (Py_ssize_t s = 0; work && columns && s < a[0].rows; s++) {
        double *v = doubles(&a[0], s), *out = doubles(&a[8], s);
        Py_ssize_t fallen = find_falls(v, columns, falls);
        differences(v, &of, out);
        add_falls(v, falls, fallen, &of, out);
        extrapolate_all(v, &of, out);
        for (Py_ssize_t k = 0; k < count; k++) if (of.hi[k] - of.lo[k] < 2) out[k] = 0;
    }
    free(work);
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
    {"bounds", (PyCFunction)(void (*)(void))bounds, METH_FASTCALL, NULL},
    {"geometry", (PyCFunction)(void (*)(void))geometry, METH_FASTCALL, NULL},
    {"rates", (PyCFunction)(void (*)(void))rates, METH_FASTCALL, NULL},
    {"bucket_quantile", (PyCFunction)(void (*)(void))bucket_quantile, METH_FASTCALL, NULL},
    {"group_sums", (PyCFunction)(void (*)(void))group_sums, METH_FASTCALL, NULL},
    {"lz4", (PyCFunction)(void (*)(void))pages_lz4, METH_FASTCALL, NULL},
    {"thrift", (PyCFunction)(void (*)(void))pages_thrift, METH_FASTCALL, NULL},
    {"hybrid", (PyCFunction)(void (*)(void))pages_hybrid, METH_FASTCALL, NULL},
    {"joined", (PyCFunction)(void (*)(void))pages_joined, METH_FASTCALL, NULL},
    {"label_sets", (PyCFunction)(void (*)(void))labels_sets, METH_FASTCALL, NULL},
    {"grouped", (PyCFunction)(void (*)(void))labels_grouped, METH_FASTCALL, NULL},
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
    if (made != NULL && PyModule_AddIntConstant(made, "FORMAT", 9) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
