// Checks the bytes of a request's header before they are parsed. Servers and proxies disagree about line feeds without carriage return,
// lines that continue the one before, and NUL bytes; such a request could be read as two. They are refused.
#pragma once
#include <cstddef>
#include <string_view>

namespace based {

class HeaderScanner {
 public:
  enum class Result { incomplete, complete, malformed, too_large };

  explicit HeaderScanner(size_t limit) : limit_(limit) {}

  // Scans further bytes; those after the end of the header are ignored.
  Result scan(std::string_view bytes);

 private:
  Result scan(char byte);
  size_t limit_, size_ = 0;
  size_t line_ = 0;  // bytes of the current line
  bool after_return_ = false;
  Result result_ = Result::incomplete;
};

}  // namespace based
