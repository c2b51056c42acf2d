// Functions of a shared library that is in the process already, whoever loaded it and however: a Python loads what it imports locally, and
// then the global scope of dlsym does not have them.
#pragma once

namespace based {

class LoadedLibrary {
 public:
  // `name` as the dynamic linker knows it, with the version: "libfoo.so.1". Loads nothing.
  explicit LoadedLibrary(const char* name);

  // Null where the library is not loaded or has no such function.
  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;
  void* handle_;  // kept open as long as the process lives
};

}  // namespace based
