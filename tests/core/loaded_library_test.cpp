#include "based/core/loaded_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace based {
namespace loaded_library_test {

// A library of glibc that the test is not linked with.
constexpr const char* kLibrary = "libresolv.so.2";
constexpr const char* kFunction = "ns_sprintrr";

void* find(const char* library, const char* name) {
  void* function = nullptr;
  LoadedLibrary(library).find(function, name);
  return function;
}

TEST(LoadedLibrary, HasFunctionsOfWhatWasLoadedLocally) {
  EXPECT_EQ(find(kLibrary, kFunction), nullptr) << "it is to load nothing";
  void* handle = dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  EXPECT_EQ(dlsym(RTLD_DEFAULT, kFunction), nullptr) << "the test's library is in the global scope";
  EXPECT_EQ(find(kLibrary, kFunction), dlsym(handle, kFunction));
  EXPECT_EQ(find(kLibrary, "no_such_function"), nullptr);
}

TEST(LoadedLibrary, HasNothingOfALibraryThatDoesNotExist) { EXPECT_EQ(find("libnothing.so.1", kFunction), nullptr); }

}  // namespace loaded_library_test
}  // namespace based
