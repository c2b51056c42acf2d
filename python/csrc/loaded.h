// Functions of libraries that the process may have loaded already, or may lack.
#pragma once
#include <dlfcn.h>

namespace based::python {

// Null where the library or the function is missing.
template <class Function>
Function* loaded_function(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

}  // namespace based::python
