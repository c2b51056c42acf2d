#include "based/serve/templates/lexer.h"

#include <algorithm>
#include <array>

#include "based/core/text.h"
#include "based/core/utf8.h"
#include "based/serve/templates/value.h"

namespace based::chat_template {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Appends a code point; Python's strings may hold surrogates, ours may not.
bool append_code(char32_t code, std::string& out) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  append_utf8(code, out);
  return true;
}

class Splitter {
 public:
  explicit Splitter(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Piece> split() {
    while (at_ < text_.size()) {
      const size_t tag = find_tag();
      add_text(tag);
      if (tag == text_.size()) break;
      read_tag(tag);
    }
    return std::move(pieces_);
  }

 private:
  size_t find_tag() const {
    for (size_t i = at_; i + 1 < text_.size(); ++i)
      if (text_[i] == '{' && (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#')) return i;
    return text_.size();
  }
  char peek(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  // Adds the text before a tag, without the white space that the tag removes.
  void add_text(size_t tag) {
    std::string_view text = text_.substr(at_, tag - at_);
    const size_t start = at_;
    at_ = tag;
    if (tag < text_.size()) {
      const char kind = text_[tag + 1], sign = peek(tag + 2);
      if (sign == '-') {
        text = stripped(text, false, true);
      } else if (sign != '+' && kind != '{') {
        const size_t line = text.rfind('\n') + 1;  // 0 if the text has no line break
        if ((line > 0 || line_starting_) && stripped(text.substr(line), true, false).empty()) text = text.substr(0, line);
      }
    }
    if (!text.empty()) pieces_.push_back({Piece::Kind::text, std::string(text), {}, start});
  }

  void read_tag(size_t tag) {
    const char kind = text_[tag + 1];
    at_ = tag + 2;
    if (peek(at_) == '-' || peek(at_) == '+') {
      // `{{+1}}` is a sum; only statements and comments have the sign '+'.
      if (peek(at_) == '-' || kind != '{') ++at_;
    }
    if (kind == '#') {
      const size_t end = text_.find("#}", at_);
      if (end == std::string_view::npos) source_.fail(tag, "a comment without '#}'");
      const bool sign = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
      finish_tag(end + 2, sign ? text_[end - 1] : '\0', true);
      return;
    }
    Piece piece{kind == '%' ? Piece::Kind::statement : Piece::Kind::output, {}, {}, tag};
    const char closing = kind == '%' ? '%' : '}';
    std::string brackets;
    while (true) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (at_ >= text_.size()) source_.fail(tag, std::string("a tag without '") + closing + "}'");
      if (brackets.empty() && ends_tag(closing)) break;
      piece.words.push_back(read_word());
      if (piece.words.back().kind == Word::Kind::symbol) match_bracket(piece.words.back(), brackets);
    }
    piece.words.push_back({Word::Kind::end, "", at_});
    const char sign = text_[at_] == '-' || text_[at_] == '+' ? text_[at_] : '\0';
    pieces_.push_back(std::move(piece));
    finish_tag(at_ + (sign == '\0' ? 2 : 3), sign, kind == '%');
  }

  bool ends_tag(char closing) const {
    const size_t at = at_ + (text_[at_] == '-' || (text_[at_] == '+' && closing == '%') ? 1 : 0);
    return peek(at) == closing && peek(at + 1) == '}';
  }

  void match_bracket(const Word& word, std::string& brackets) const {
    constexpr std::string_view opening = "([{", closing = ")]}";
    if (word.text.size() != 1) return;
    if (opening.find(word.text) != std::string_view::npos) {
      brackets += word.text;
    } else if (const size_t kind = closing.find(word.text); kind != std::string_view::npos) {
      if (brackets.empty() || brackets.back() != opening[kind]) source_.fail(word.at, "unexpected '" + word.text + "'");
      brackets.pop_back();
    }
  }

  void finish_tag(size_t end, char sign, bool trims_line) {
    at_ = end;
    if (sign == '-') {
      while (at_ < text_.size()) {
        const std::string_view rest = text_.substr(at_, 4);
        const size_t left = stripped(rest, true, false).size();
        if (left == rest.size()) break;
        at_ += rest.size() - left;
      }
    } else if (sign != '+' && trims_line && peek(at_) == '\n') {
      ++at_;
    }
    line_starting_ = text_[at_ - 1] == '\n';
  }

  Word read_word() {
    const size_t start = at_;
    const char c = text_[at_];
    if (is_name_start(c)) {
      while (at_ < text_.size() && (is_name_start(text_[at_]) || is_digit(text_[at_]))) ++at_;
      return {Word::Kind::name, std::string(text_.substr(start, at_ - start)), start};
    }
    if (is_digit(c)) return read_number();
    if (c == '"' || c == '\'') return read_string();
    constexpr std::array<std::string_view, 6> pairs{"==", "!=", "<=", ">=", "//", "**"};
    const bool pair = std::find(pairs.begin(), pairs.end(), text_.substr(at_, 2)) != pairs.end();
    if (!pair && std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos)
      source_.fail(at_, "unexpected " + in_quotes(text_.substr(at_, 1)));
    at_ += pair ? 2 : 1;
    return {Word::Kind::symbol, std::string(text_.substr(start, at_ - start)), start};
  }

  Word read_number() {
    const size_t start = at_;
    const auto digits = [this] {
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    };
    digits();
    Word::Kind kind = Word::Kind::whole;
    if (peek(at_) == '.' && is_digit(peek(at_ + 1))) {
      kind = Word::Kind::real;
      ++at_;
      digits();
    }
    if (peek(at_) == 'e' || peek(at_) == 'E') {
      const size_t sign = peek(at_ + 1) == '-' || peek(at_ + 1) == '+' ? 1 : 0;
      if (is_digit(peek(at_ + 1 + sign))) {
        kind = Word::Kind::real;
        at_ += 1 + sign;
        digits();
      }
    }
    if (is_name_start(peek(at_))) source_.fail(at_, "a letter in a number");
    return {kind, std::string(text_.substr(start, at_ - start)), start};
  }

  Word read_string() {
    const size_t start = at_;
    const char quote = text_[at_++];
    Word word{Word::Kind::text, "", start};
    while (true) {
      if (at_ >= text_.size()) source_.fail(start, "a string without its closing quote");
      const char c = text_[at_++];
      if (c == quote) return word;
      if (c == '\\')
        read_escape(word.text);
      else
        word.text += c;
    }
  }

  // Python's escapes; at_ is after the backslash.
  void read_escape(std::string& out) {
    if (at_ >= text_.size()) return;
    const char c = text_[at_++];
    const size_t simple = std::string_view("\\'\"abfnrtv").find(c);
    if (simple != std::string_view::npos) {
      out += "\\'\"\a\b\f\n\r\t\v"[simple];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      char32_t code = 0;
      for (int i = 0; i < (c == 'x' ? 2 : c == 'u' ? 4 : 8); ++i, ++at_) {
        const char digit = peek(at_);
        const size_t value = std::string_view("0123456789abcdefABCDEF").find(digit);
        if (digit == '\0' || value == std::string_view::npos) source_.fail(at_, "expected a hexadecimal digit");
        code = code * 16 + static_cast<char32_t>(value < 16 ? value : value - 6);
      }
      if (!append_code(code, out)) source_.fail(at_, "the escape is no character");
    } else if (c >= '0' && c <= '7') {
      auto code = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && peek(at_) >= '0' && peek(at_) <= '7'; ++i) code = code * 8 + static_cast<char32_t>(text_[at_++] - '0');
      append_code(code, out);
    } else if (c != '\n') {
      out += '\\';
      out += c;
    }
  }

  const Source& source_;
  std::string_view text_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the last piece ended with a line break
  std::vector<Piece> pieces_;
};

}  // namespace

std::string Source::place(size_t at) const {
  const std::string_view before = std::string_view(text).substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const int64_t column = 1 + characters(before.substr(before.rfind('\n') + 1));
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

void Source::fail(size_t at, const std::string& reason) const { throw Error(place(at) + ": " + reason); }

Source make_source(std::string_view text, std::string name) {
  Source source{std::move(name), {}};
  if (!is_valid_utf8(text)) throw Error(source.name + ":1:1: the template is not UTF-8");
  source.text.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r')
      source.text += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      source.text += '\n';
  }
  if (source.text.ends_with('\n')) source.text.pop_back();  // as Jinja2 with keep_trailing_newline=False
  return source;
}

std::vector<Piece> split_source(const Source& source) { return Splitter(source).split(); }

}  // namespace based::chat_template
