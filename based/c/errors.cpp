#include <c10/util/Exception.h>

#include <cstdlib>
#include <new>

#include "based/c/handles.h"

namespace based::c {
namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

based_status record(based_status status, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();  // the memory is too short for the message
  }
  return status;
}

}  // namespace

based_status record_exception() noexcept {
  try {
    throw;
  } catch (const UsageError& error) {
    return record(BASED_USAGE, error.what());
  } catch (const c10::Error& error) {
    return record(BASED_FAILED, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return record(BASED_FAILED, "out of memory");
  } catch (const std::exception& error) {
    return record(BASED_FAILED, error.what());
  } catch (...) {
    return record(BASED_FAILED, "an unknown error");
  }
}

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw UsageError(std::string(name) + " is NULL");
}

void* allocate_copy(const void* data, size_t bytes) {
  constexpr size_t kZero = sizeof(int64_t);
  auto* copy = static_cast<unsigned char*>(std::malloc(bytes + kZero));
  if (copy == nullptr) throw Error("out of memory: " + std::to_string(bytes) + " bytes are needed for a result");
  if (bytes > 0) std::memcpy(copy, data, bytes);
  std::memset(copy + bytes, 0, kZero);
  return copy;
}

}  // namespace based::c

using namespace based::c;

const char* based_last_error() { return last_error().c_str(); }

int based_abi_version() { return BASED_ABI_VERSION; }

void based_free(void* memory) { std::free(memory); }
