#include "based/core/json_member.h"

#include <charconv>

#include "based/core/utf8.h"

namespace based {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool take(char c) {
    skip_space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool take_key(std::string_view key) {
    if (!take('"') || !std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(key)) return false;
    at_ += key.size();
    return at_ < end_ && *at_++ == '"' && take(':');
  }
  bool at_end() {
    skip_space();
    return at_ == end_;
  }
  // Reads the rest of a string after its opening quote, including the closing quote.
  bool take_string(std::string& to) {
    to.clear();
    for (;;) {
      const char* plain = at_;
      while (at_ < end_ && is_plain(*at_)) ++at_;
      to.append(plain, at_);
      if (at_ == end_) return false;
      if (*at_ == '"') {
        ++at_;
        return true;
      }
      if (*at_ == '\\' ? !take_escape(to) : !take_character(to)) return false;
    }
  }

 private:
  static bool is_plain(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
  }
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  bool take_character(std::string& to) {
    const Utf8Char c = utf8_at(at_, end_);
    if (c.code == kInvalidUtf8 || c.code < 0x20) return false;
    to.append(at_, static_cast<size_t>(c.size));
    at_ += c.size;
    return true;
  }
  bool take_escape(std::string& to) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeans = "\"\\/\b\f\n\r\t";
    if (end_ - at_ < 2) return false;
    if (at_[1] == 'u') return take_unicode_escape(to);
    const size_t which = kNames.find(at_[1]);
    if (which == std::string_view::npos) return false;
    to += kMeans[which];
    at_ += 2;
    return true;
  }
  bool take_unicode_escape(std::string& to) {
    uint32_t code = 0;
    if (end_ - at_ < 6 || std::from_chars(at_ + 2, at_ + 6, code, 16).ptr != at_ + 6) return false;
    if (code >= 0xd800 && code < 0xe000) return false;
    append_utf8(code, to);
    at_ += 6;
    return true;
  }

  const char *at_, *end_;
};

}  // namespace

bool read_only_member(std::string_view text, std::string_view key, std::string& value) {
  Reader in(text);
  return in.take('{') && in.take_key(key) && in.take('"') && in.take_string(value) && in.take('}') && in.at_end();
}

}  // namespace based
