/* Functions of _labels.c; _kernel.c puts them into the module. */
PyObject *labels_sets(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *labels_grouped(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
