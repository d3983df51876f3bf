/* The extension module: empty for Python, which calls the functions of the other files through ctypes. */
#if __has_include(<Python.h>) /* without Python's headers the library can still be built and called */
#include <Python.h>

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_cpu",
    .m_doc = "Kernels of the CPU path; inference.kernels.native calls them.",
    .m_size = 0,
};

PyMODINIT_FUNC PyInit__cpu(void) { return PyModuleDef_Init(&module); }
#else
typedef int nothing_to_compile;
#endif
