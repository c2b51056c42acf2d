#include "apps/output.h"

#include <unistd.h>

#include <array>
#include <streambuf>

#include "based/core/descriptors.h"
#include "based/core/error.h"
#include "based/core/log.h"
#include "based/core/text.h"

namespace based::apps {
namespace {

class StandardOutput final : public std::streambuf {
 public:
  StandardOutput() { discard(); }

 protected:
  int_type overflow(int_type c) override {
    drain();
    return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c) : sputc(traits_type::to_char_type(c));
  }
  int sync() override {
    drain();
    return 0;
  }

 private:
  void discard() { setp(buffer_.data(), buffer_.data() + buffer_.size()); }
  void drain() {
    const int error = write_all(STDOUT_FILENO, {pbase(), pptr()});
    discard();  // discards data that could not be written, too, so that the error is reported only once
    if (error != 0) throw Error("standard output cannot be written: " + system_message(error));
  }
  std::array<char, 1 << 16> buffer_;
};

}  // namespace

std::ostream& output() {
  struct Stream {
    StandardOutput buffer;
    std::ostream out{&buffer};
    Stream() { out.exceptions(std::ios::badbit); }  // so that the buffer's exception is rethrown
  };
  static Stream stream;
  return stream.out;
}

void print_line(const std::string& text) { output() << escape_controls(text) << '\n' << std::flush; }

void print_text(const std::string& text) { output() << text << std::flush; }

void print_message(const std::string& text) {
  const std::string line = "based: " + shortened_lines(escape_controls(text, true));
  write_all(STDERR_FILENO, line + "\n");
  copy_to_log(line);
}

}  // namespace based::apps
