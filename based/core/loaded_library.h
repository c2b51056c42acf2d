// Access to the functions of a shared library that is already loaded into the process. dlsym's global scope is not enough: Python loads the
// libraries of its modules with local scope.
#pragma once

namespace based {

class LoadedLibrary {
 public:
  // `name` is the library's soname with version, such as "libfoo.so.1". Does not load it.
  explicit LoadedLibrary(const char* name);

  // Sets `function` to null if the library is not loaded or has no such function.
  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(address(name));
  }

 private:
  void* address(const char* name) const;
  void* handle_;  // never closed
};

}  // namespace based
