#include "based/serve/protocol/utf8_text.h"

#include <algorithm>

#include "based/core/utf8.h"

namespace based {
namespace {

struct Prefix {
  size_t size = 1;        // bytes; 1 for a byte that cannot begin a character
  bool complete = false;  // a whole character
  bool open = false;      // the beginning of a character that the end of the text cuts off
};

// The character at the start of the text, or the longest beginning of one.
Prefix prefix_of(std::string_view text) {
  const Utf8Char character = utf8_at(text.data(), text.data() + text.size());
  if (character.code != kInvalidUtf8) return {static_cast<size_t>(character.size), true, false};
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0xc2 || lead > 0xf4) return {};
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  // The second byte excludes overlong forms, surrogates and codes above U+10FFFF (RFC 3629).
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  size_t length = 1;
  while (length < std::min(size, text.size()) && byte(length) >= (length == 1 ? least : 0x80) &&
         byte(length) <= (length == 1 ? most : 0xbf))
    ++length;
  return {length, false, length == text.size()};
}

// Calls `on_character` for each character, and for each run of bytes that U+FFFD replaces. An incomplete character at the end is not read;
// returns its bytes.
template <class OnCharacter>
size_t read_characters(std::string_view text, const OnCharacter& on_character) {
  while (!text.empty()) {
    const Prefix prefix = prefix_of(text);
    if (prefix.open) return text.size();
    on_character(text.substr(0, prefix.size), prefix.complete);
    text.remove_prefix(prefix.size);
  }
  return 0;
}

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

std::string well_formed(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  const size_t rest = read_characters(bytes, [&](std::string_view part, bool valid) { out += valid ? part : kReplacement; });
  if (rest > 0) out += kReplacement;
  return out;
}

std::string Utf8Text::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  out.reserve(held_.size());
  const size_t rest = read_characters(held_, [&](std::string_view part, bool valid) { out += valid ? part : kReplacement; });
  held_.erase(0, held_.size() - rest);
  return out;
}

int64_t CharacterCounter::push(std::string_view bytes) {
  if (bytes.empty()) return complete_;
  const size_t before = held_.size();
  held_ += bytes;
  const std::string_view text = held_;
  int64_t index = -1;
  size_t at = 0;
  const size_t rest = read_characters(text, [&](std::string_view part, bool) {
    if (index < 0 && at + part.size() > before) index = complete_;
    at += part.size();
    ++complete_;
  });
  if (index < 0) index = complete_;
  held_.erase(0, held_.size() - rest);
  return index;
}

}  // namespace based
