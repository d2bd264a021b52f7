/* Functions of _pages.c; _kernel.c puts them into the module. */
PyObject *pages_lz4(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *pages_thrift(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *pages_hybrid(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *pages_lists(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *pages_joined(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
