/* Label sets: put together from the columns of a recording, and grouped for an aggregation. A label
 * set is a tuple of (name, value) pairs, by name. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include "_labels.h"

static PyObject *damaged(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* --- from columns ----------------------------------------------------------------------------- */

enum { PAIRS_KNOWN = 1 << 12 };

/* Return (key, value), the same object as before where it was asked for lately. */
static PyObject *label_pair(PyObject **known, PyObject *key, PyObject *value) {
    uintptr_t mixed = ((uintptr_t)key >> 4) * 31 + ((uintptr_t)value >> 4);
    PyObject **slot = &known[(mixed ^ mixed >> 12) & (PAIRS_KNOWN - 1)], *pair = *slot;
    if (pair == NULL || PyTuple_GET_ITEM(pair, 0) != key || PyTuple_GET_ITEM(pair, 1) != value) {
        pair = PyTuple_Pack(2, key, value);
        if (pair == NULL) return NULL;
        Py_XSETREF(*slot, pair);
    }
    return Py_NewRef(pair);
}

/* Whether each key is greater than the one before. */
static int labels_ascend(PyObject *pairs) {
    for (Py_ssize_t i = 1; i < PyList_GET_SIZE(pairs); i++) {
        PyObject *before = PyTuple_GET_ITEM(PyList_GET_ITEM(pairs, i - 1), 0);
        if (PyUnicode_Compare(before, PyTuple_GET_ITEM(PyList_GET_ITEM(pairs, i), 0)) >= 0) return 0;
    }
    return 1;
}

/* Append one label to `pairs`; an empty value is none. */
static int add_label(PyObject **known, PyObject *pairs, PyObject *key, PyObject *value) {
    if (value == Py_None) return 0;
    if (!PyUnicode_Check(key) || !PyUnicode_Check(value)) return damaged("no text"), -1;
    if (!PyUnicode_GET_LENGTH(value)) return 0;
    PyObject *pair = label_pair(known, key, value);
    int failed = pair == NULL || PyList_Append(pairs, pair) < 0;
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

typedef struct {
    PyObject *keys, *texts, *offsets, *names, *name_key;
} LabelRows;

static PyObject *label_set(PyObject **known, const LabelRows *from, Py_ssize_t row) {
    if (row < 0 || row >= PyList_GET_SIZE(from->names) || row + 1 >= PyList_GET_SIZE(from->offsets))
        return damaged("no such row");
    Py_ssize_t at = PyLong_AsSsize_t(PyList_GET_ITEM(from->offsets, row));
    Py_ssize_t end = PyLong_AsSsize_t(PyList_GET_ITEM(from->offsets, row + 1));
    if (PyErr_Occurred()) return NULL;
    if (at < 0 || end < at || end > PyList_GET_SIZE(from->keys) ||
        end > PyList_GET_SIZE(from->texts))
        return damaged("labels reach outside their columns");
    PyObject *pairs = PyList_New(0);
    int failed = pairs == NULL ||
                 add_label(known, pairs, from->name_key, PyList_GET_ITEM(from->names, row)) < 0;
    for (; !failed && at < end; at++)
        failed = add_label(known, pairs, PyList_GET_ITEM(from->keys, at),
                           PyList_GET_ITEM(from->texts, at)) < 0;
    if (!failed && !labels_ascend(pairs)) {
        failed = PyList_Sort(pairs) < 0;
        if (!failed && !labels_ascend(pairs)) failed = 1, damaged("a label twice");
    }
    PyObject *made = failed ? NULL : PyList_AsTuple(pairs);
    Py_XDECREF(pairs);
    return made;
}

/* label_sets(keys, texts, offsets, names, rows), all lists -> the labels of these rows, by name */
PyObject *labels_sets(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) return damaged("label_sets: five arguments");
    for (int i = 0; i < 5; i++)
        if (!PyList_Check(args[i])) return damaged("label_sets: no list");
    PyObject **known = calloc(PAIRS_KNOWN, sizeof *known);
    if (known == NULL) return PyErr_NoMemory();
    LabelRows from = {args[0], args[1], args[2], args[3], PyUnicode_InternFromString("__name__")};
    PyObject *made = from.name_key == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(args[4]); i++) {
        Py_ssize_t row = PyLong_AsSsize_t(PyList_GET_ITEM(args[4], i));
        PyObject *labels = PyErr_Occurred() ? NULL : label_set(known, &from, row);
        if (labels == NULL || PyList_Append(made, labels) < 0) Py_CLEAR(made);
        Py_XDECREF(labels);
    }
    for (int i = 0; i < PAIRS_KNOWN; i++) Py_XDECREF(known[i]);
    free(known);
    Py_XDECREF(from.name_key);
    return made;
}

/* --- groups ----------------------------------------------------------------------------------- */

/* Return the pairs of `labels` whose name is among `names`, or is not. */
static PyObject *chosen(PyObject *labels, PyObject *names, int among) {
    Py_ssize_t size = PyTuple_GET_SIZE(labels), n = 0;
    PyObject *made = PyTuple_New(size);
    for (Py_ssize_t i = 0; made != NULL && i < size; i++) {
        PyObject *pair = PyTuple_GET_ITEM(labels, i);
        int there = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2
                        ? PySet_Contains(names, PyTuple_GET_ITEM(pair, 0))
                        : (damaged("grouped: no pair"), -1);
        if (there < 0) Py_CLEAR(made);
        else if (there == among) PyTuple_SET_ITEM(made, n++, Py_NewRef(pair));
    }
    if (made != NULL && n < size) _PyTuple_Resize(&made, n);
    return made;
}

/* Return the number of the group of `labels` in `groups`, a new one if it is the first; -1: error. */
static int64_t group_number(PyObject *groups, PyObject *labels, PyObject *names, int among) {
    if (!PyTuple_Check(labels)) return damaged("grouped: no label set"), -1;
    PyObject *left = chosen(labels, names, among);
    if (left == NULL) return -1;
    PyObject *next = PyLong_FromSsize_t(PyDict_GET_SIZE(groups));
    PyObject *known = next == NULL ? NULL : PyDict_SetDefault(groups, left, next);
    int64_t number = known == NULL ? -1 : PyLong_AsLongLong(known);
    Py_XDECREF(next);
    Py_DECREF(left);
    return number;
}

/* grouped(label sets, names, among, out int64[S]) -> group -> number, in order of first appearance:
 * what is left of each label set, which is the pairs whose name is (not) among `names` */
PyObject *labels_grouped(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 4 || !PyAnySet_Check(args[1])) return damaged("grouped: four arguments");
    int among = PyObject_IsTrue(args[2]);
    PyObject *sets = among < 0 ? NULL : PySequence_Fast(args[0], "grouped: no sequence");
    Py_buffer out;
    if (sets == NULL) return NULL;
    if (PyObject_GetBuffer(args[3], &out, PyBUF_WRITABLE) < 0) {
        Py_DECREF(sets);
        return NULL;
    }
    Py_ssize_t size = PySequence_Fast_GET_SIZE(sets);
    PyObject *groups = size == out.len / 8 ? PyDict_New() : damaged("grouped: other sizes");
    for (Py_ssize_t i = 0; groups != NULL && i < size; i++) {
        int64_t number = group_number(groups, PySequence_Fast_GET_ITEM(sets, i), args[1], among);
        if (number < 0) Py_CLEAR(groups);
        else ((int64_t *)out.buf)[i] = number;
    }
    PyBuffer_Release(&out);
    Py_DECREF(sets);
    return groups;
}
