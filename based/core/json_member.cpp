#include "based/core/json_member.h"

#include <array>
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
  // Reads a key without escapes, and the colon after it.
  bool take_any_key(std::string_view& key) {
    if (!take('"')) return false;
    const char* const first = at_;
    while (at_ < end_ && is_plain(*at_)) ++at_;
    key = {first, static_cast<size_t>(at_ - first)};
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
  // Reads \uXXXX, or two of them that are a surrogate pair.
  bool take_unicode_escape(std::string& to) {
    uint32_t code = 0, low = 0;
    if (!take_code_unit(code)) return false;
    if (code >= 0xd800 && code < 0xe000) {
      if (code >= 0xdc00 || !take_code_unit(low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(code, to);
    return true;
  }
  bool take_code_unit(uint32_t& unit) {
    if (end_ - at_ < 6 || at_[0] != '\\' || at_[1] != 'u' || std::from_chars(at_ + 2, at_ + 6, unit, 16).ptr != at_ + 6) return false;
    at_ += 6;
    return true;
  }

  const char *at_, *end_;
};

// The keys of an object, to find one that occurs twice.
class SeenKeys {
 public:
  // Returns false if the key was added before, or if there are too many keys to compare with.
  bool add(std::string_view key) {
    for (size_t i = 0; i < count_; ++i) {
      if (keys_[i] == key) return false;
    }
    if (count_ == keys_.size()) return false;
    keys_[count_++] = key;
    return true;
  }

 private:
  std::array<std::string_view, 16> keys_;
  size_t count_ = 0;
};

// Reads an object of strings and stores the one at `key`; "" if there is none.
bool take_strings(Reader& in, std::string_view key, std::string& value) {
  SeenKeys keys;
  std::string unused;
  std::string_view at;
  value.clear();
  if (!in.take('{')) return false;
  if (in.take('}')) return true;
  do {
    if (!in.take_any_key(at) || !keys.add(at) || !in.take('"') || !in.take_string(at == key ? value : unused)) return false;
  } while (in.take(','));
  return in.take('}');
}

}  // namespace

bool read_members(std::string_view text, std::string_view key, std::string& value, NestedKey nested_key, std::string& nested) {
  Reader in(text);
  SeenKeys keys;
  std::string unused;
  std::string_view at;
  bool found = false;
  nested.clear();
  if (!in.take('{')) return false;
  do {
    if (!in.take_any_key(at) || !keys.add(at)) return false;
    if (in.take('"')) {
      if (!in.take_string(at == key ? value : unused)) return false;
      found = found || at == key;
    } else if (at == key || !take_strings(in, nested_key.inner, at == nested_key.outer ? nested : unused)) {
      return false;
    }
  } while (in.take(','));
  return found && in.take('}') && in.at_end();
}

bool read_only_member(std::string_view text, std::string_view key, std::string& value) {
  Reader in(text);
  return in.take('{') && in.take_key(key) && in.take('"') && in.take_string(value) && in.take('}') && in.at_end();
}

}  // namespace based
