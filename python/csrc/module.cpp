// The Python module _based_ops. Importing it loads this library, whose static objects register the operators. It has two constants:
// version, and cuda_version ("13.0"; empty where the wheel has no CUDA kernels).
#include <Python.h>

// The interpreter provides these functions; it is not linked.
extern "C" {
__attribute__((weak)) PyObject* PyModuleDef_Init(PyModuleDef*);
__attribute__((weak)) int PyModule_AddStringConstant(PyObject*, const char*, const char*);
}

namespace {

int add_constants(PyObject* module) {
  if (PyModule_AddStringConstant(module, "version", BASED_VERSION) != 0) return -1;
  return PyModule_AddStringConstant(module, "cuda_version", BASED_CUDA_VERSION);
}

}  // namespace

PyMODINIT_FUNC PyInit__based_ops() {
  static PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(add_constants)}, {0, nullptr}};
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_based_ops", nullptr, 0, nullptr, slots, nullptr, nullptr, nullptr};
  return PyModuleDef_Init(&module);
}
