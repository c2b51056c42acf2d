// Failures from outside the program (files, flags, configurations, requests) throw Error. Its message names the file or flag, the field and
// the remedy. Programs exit with 1 for an Error and with 2 for a UsageError. Invariants of the program itself are checked by BASED_ASSERT.
#pragma once
#include <stdexcept>
#include <string>

namespace based {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A wrong command line or configuration, detected before any work started.
class UsageError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace based

#define BASED_ASSERT(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::based::assertion_failed(#condition, __FILE__, __LINE__))
#ifdef NDEBUG
#define BASED_DEBUG_ASSERT(condition) static_cast<void>(0)
#else
#define BASED_DEBUG_ASSERT(condition) BASED_ASSERT(condition)
#endif
