#include "based/data/json_lines.h"

#include <charconv>
#include <functional>
#include <istream>
#include <ostream>

#include "based/core/json.h"
#include "based/core/json_member.h"
#include "based/core/utf8.h"

namespace based {
namespace {

void for_each_line(std::istream& in, const std::string& source, std::ostream& out,
                   const std::function<void(const std::string& line, int64_t number)>& each) {
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line == "\r") continue;
    each(line, number);
    if (!out) throw Error("the output cannot be written");
  }
  if (in.bad()) throw Error(source + ": cannot be read to its end");
}

std::string place(const std::string& source, int64_t number) { return source + ":" + std::to_string(number); }

Json parse_object(const std::string& line, const std::string& where) {
  Json value = parse_json(line, where);
  if (!value.is_object()) throw Error(where + ": must be a JSON object");
  return value;
}

// The elements of a list of integers from 0 to `most`.
std::vector<int32_t> integers(const Json& list, int32_t most, const std::string& where) {
  if (!list.is_array()) throw Error(where + " must be a list of integers");
  std::vector<int32_t> values;
  values.reserve(list.size());
  for (const Json& item : list) {
    const bool fits = item.is_number_unsigned() ? item.get<uint64_t>() <= static_cast<uint64_t>(most)
                                                : item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() <= most;
    if (!fits) throw Error(where + "[" + std::to_string(values.size()) + "] must be an integer from 0 to " + std::to_string(most));
    values.push_back(item.get<int32_t>());
  }
  return values;
}

std::string line_of(const char* key, const std::vector<int32_t>& values) {
  std::string line = std::string("{\"") + key + "\":[";
  char digits[12];
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) line += ',';
    line.append(digits, std::to_chars(digits, digits + sizeof digits, values[i]).ptr);
  }
  return line + "]}\n";
}

}  // namespace

void encode_json_lines(const Tokenizer& tokenizer, Specials specials, std::istream& in, const std::string& source, std::ostream& out) {
  std::string plain;
  for_each_line(in, source, out, [&](const std::string& line, int64_t number) {
    if (read_only_member(line, "text", plain)) {
      out << line_of("ids", tokenizer.encode(plain, specials));
      return;
    }
    const std::string where = place(source, number);
    const Json value = parse_object(line, where);
    const auto text = value.find("text"), bytes = value.find("bytes");
    if ((text == value.end()) == (bytes == value.end())) throw Error(where + ": needs either 'text' or 'bytes'");
    if (bytes != value.end()) {
      std::string content;
      for (const int32_t byte : integers(*bytes, 255, where + ": 'bytes'")) content += static_cast<char>(byte);
      out << line_of("ids", tokenizer.encode(content, specials));
      return;
    }
    if (!text->is_string()) throw Error(where + ": 'text' must be a string");
    out << line_of("ids", tokenizer.encode(text->get_ref<const std::string&>(), specials));
  });
}

void decode_json_lines(const Tokenizer& tokenizer, std::istream& in, const std::string& source, std::ostream& out) {
  for_each_line(in, source, out, [&](const std::string& line, int64_t number) {
    const std::string where = place(source, number);
    const Json value = parse_object(line, where);
    const auto ids = value.find("ids");
    if (ids == value.end()) throw Error(where + ": needs 'ids'");
    const auto most = static_cast<int32_t>(tokenizer.vocab_size() - 1);
    const std::string text = tokenizer.decode(integers(*ids, most, where + ": 'ids'"));
    if (is_valid_utf8(text)) {
      out << dump_json(Json{{"text", text}}) << '\n';
    } else {
      std::vector<int32_t> bytes;
      for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
      out << line_of("bytes", bytes);
    }
  });
}

}  // namespace based
