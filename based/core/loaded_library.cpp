#include "based/core/loaded_library.h"

#include <dlfcn.h>

namespace based {

LoadedLibrary::LoadedLibrary(const char* name) : handle_(dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {}

void* LoadedLibrary::address(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

}  // namespace based
