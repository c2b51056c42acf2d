#include "based/serve/http/header_scanner.h"

namespace based {

HeaderScanner::Result HeaderScanner::scan(char byte) {
  if (++size_ > limit_) return Result::too_large;
  if (after_return_) {
    if (byte != '\n') return Result::malformed;
    after_return_ = false;
    const bool empty_line = line_ == 0;
    line_ = 0;
    return empty_line ? Result::complete : Result::incomplete;
  }
  const bool first_line = size_ == line_ + 1;
  if (byte == '\n' || byte == '\0') return Result::malformed;
  if (line_ == 0 && (byte == ' ' || byte == '\t')) return Result::malformed;
  if (byte == '\r') {
    if (first_line && line_ == 0) return Result::malformed;  // an empty line before the request
    after_return_ = true;
  } else {
    ++line_;
  }
  return Result::incomplete;
}

HeaderScanner::Result HeaderScanner::scan(std::string_view bytes) {
  for (const char byte : bytes) {
    if (result_ != Result::incomplete) break;
    result_ = scan(byte);
  }
  return result_;
}

}  // namespace based
