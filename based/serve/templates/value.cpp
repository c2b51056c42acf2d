#include "based/serve/templates/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "based/core/utf8.h"

namespace based::chat_template {

const Value* Object::find(std::string_view key) const {
  const auto found = places.find(key);
  return found == places.end() ? nullptr : &items[found->second].second;
}

const std::string* Value::as_text() const {
  const auto* pointer = get<Text>();
  return pointer ? pointer->get() : nullptr;
}
const List* Value::as_list() const {
  const auto* pointer = get<std::shared_ptr<const List>>();
  return pointer ? pointer->get() : nullptr;
}
const Object* Value::as_object() const {
  const auto* pointer = get<std::shared_ptr<const Object>>();
  return pointer ? pointer->get() : nullptr;
}
Namespace* Value::as_namespace() const {
  const auto* pointer = get<std::shared_ptr<Namespace>>();
  return pointer ? pointer->get() : nullptr;
}
const LoopState* Value::as_loop() const {
  const auto* pointer = get<std::shared_ptr<const LoopState>>();
  return pointer ? pointer->get() : nullptr;
}

int64_t Value::whole() const {
  if (const auto* boolean = get<bool>()) return *boolean ? 1 : 0;
  return std::get<int64_t>(storage_);
}

double Value::number() const {
  if (const auto* real = get<double>()) return *real;
  return static_cast<double>(whole());
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const std::string* text = as_text()) return !text->empty();
  if (const List* list = as_list()) return !list->items.empty();
  if (const Object* object = as_object()) return !object->items.empty();
  return true;
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Object* object = as_object()) return object->depth;
  return 0;
}

const char* Value::type_name() const {
  constexpr std::array names{"undefined", "none",   "a boolean", "an integer",  "a float",
                             "a string",  "a list", "an object", "a namespace", "a loop"};
  return names[storage_.index()];
}

namespace {

int depth_with(int depth, const Value& item, int limit) {
  if (item.as_namespace() || item.as_loop()) throw Error(std::string(item.type_name()) + " cannot be an element of a value");
  depth = std::max(depth, item.depth() + 1);
  if (depth > limit) throw Error("a value nests more than " + std::to_string(limit) + " levels");
  return depth;
}

Value list_of(std::vector<Value> items, int depth) {
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  list->depth = depth;
  return {Value::Storage(std::shared_ptr<const List>(std::move(list)))};
}

Value object_of(std::vector<std::pair<std::string, Value>> items, int depth) {
  auto object = std::make_shared<Object>();
  object->items = std::move(items);
  object->depth = depth;
  object->places.reserve(object->items.size());
  for (size_t i = 0; i < object->items.size(); ++i) object->places.emplace(object->items[i].first, i);
  return {Value::Storage(std::shared_ptr<const Object>(std::move(object)))};
}

}  // namespace

Value make_list(std::vector<Value> items, int limit) {
  int depth = 1;
  for (const Value& item : items) depth = depth_with(depth, item, limit);
  return list_of(std::move(items), depth);
}

Value make_object(std::vector<std::pair<std::string, Value>> items, int limit) {
  int depth = 1;
  std::vector<std::pair<std::string, Value>> unique;
  std::unordered_map<std::string, size_t> places;
  unique.reserve(items.size());
  for (auto& item : items) {
    depth = depth_with(depth, item.second, limit);
    const auto [found, fresh] = places.try_emplace(item.first, unique.size());
    if (fresh)
      unique.push_back(std::move(item));
    else
      unique[found->second].second = std::move(item.second);
  }
  return object_of(std::move(unique), depth);
}

Value from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value > static_cast<uint64_t>(INT64_MAX)) return {Value::Storage(static_cast<double>(value))};
      return Value::integer(static_cast<int64_t>(value));
    }
    case Json::value_t::number_float: return {Value::Storage(json.get<double>())};
    case Json::value_t::string: return Value::text(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      int depth = 1;
      for (const Json& element : json) {
        items.push_back(from_json(element));
        depth = std::max(depth, items.back().depth() + 1);
      }
      return list_of(std::move(items), depth);
    }
    case Json::value_t::object: {
      std::vector<std::pair<std::string, Value>> items;
      items.reserve(json.size());
      int depth = 1;
      for (const auto& element : json.items()) {
        items.emplace_back(element.key(), from_json(element.value()));
        depth = std::max(depth, items.back().second.depth() + 1);
      }
      return object_of(std::move(items), depth);
    }
    default: return {Value::Storage(None{})};
  }
}

namespace {

// Python's repr of a float: the shortest digits that read back as the same number.
void append_float(double value, std::string& out) {
  if (std::isnan(value) || std::isinf(value)) {
    out += std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    return;
  }
  std::array<char, 64> buffer{};
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, fixed ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string_view digits(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  out += digits;
  if (fixed && digits.find('.') == std::string_view::npos) out += ".0";
}

void append_hex(unsigned value, int digits, std::string& out) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15U];
}

void append_text_repr(const std::string& text, std::string& out) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      append_hex(byte, 2, out);
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_json_text(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const size_t named = std::string_view("\"\\\n\r\t\b\f").find(c);
    if (named != std::string_view::npos) {
      out += '\\';
      out += "\"\\nrtbf"[named];
    } else if (byte < 0x20) {
      out += "\\u";
      append_hex(byte, 4, out);
    } else {
      out += c;
    }
  }
  out += '"';
}

void new_line(int indent, int level, std::string& out) {
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
}

}  // namespace

void append_text(const Value& value, std::string& out) {
  if (const std::string* text = value.as_text())
    out += *text;
  else
    append_repr(value, out);
}

void append_repr(const Value& value, std::string& out) {
  if (const std::string* text = value.as_text()) {
    append_text_repr(*text, out);
  } else if (const auto* boolean = value.get<bool>()) {
    out += *boolean ? "True" : "False";
  } else if (const auto* whole = value.get<int64_t>()) {
    out += std::to_string(*whole);
  } else if (const auto* real = value.get<double>()) {
    append_float(*real, out);
  } else if (const List* list = value.as_list()) {
    out += '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(list->items[i], out);
    }
    out += ']';
  } else if (const Object* object = value.as_object()) {
    out += '{';
    for (size_t i = 0; i < object->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_text_repr(object->items[i].first, out);
      out += ": ";
      append_repr(object->items[i].second, out);
    }
    out += '}';
  } else if (value.is_none()) {
    out += "None";
  } else if (!value.is_undefined()) {
    throw Error(std::string(value.type_name()) + " cannot be printed");
  }
}

void append_json(const Value& value, int indent, int level, std::string& out) {
  const auto separate = [&](size_t i) {
    if (i > 0) out += indent < 0 ? ", " : ",";
    if (indent >= 0) new_line(indent, level + 1, out);
  };
  if (const std::string* text = value.as_text()) {
    append_json_text(*text, out);
  } else if (const auto* boolean = value.get<bool>()) {
    out += *boolean ? "true" : "false";
  } else if (value.is_none()) {
    out += "null";
  } else if (const auto* real = value.get<double>(); real && !std::isfinite(*real)) {
    out += std::isnan(*real) ? "NaN" : *real > 0 ? "Infinity" : "-Infinity";
  } else if (value.is_number()) {
    append_repr(value, out);
  } else if (const List* list = value.as_list()) {
    out += '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      separate(i);
      append_json(list->items[i], indent, level + 1, out);
    }
    if (indent >= 0 && !list->items.empty()) new_line(indent, level, out);
    out += ']';
  } else if (const Object* object = value.as_object()) {
    out += '{';
    for (size_t i = 0; i < object->items.size(); ++i) {
      separate(i);
      append_json_text(object->items[i].first, out);
      out += ": ";
      append_json(object->items[i].second, indent, level + 1, out);
    }
    if (indent >= 0 && !object->items.empty()) new_line(indent, level, out);
    out += '}';
  } else {
    throw Error(std::string(value.type_name()) + " has no JSON form");
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (const std::string* text = a.as_text()) return b.as_text() && *text == *b.as_text();
  if (a.is_none() || a.is_undefined()) return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
  if (const List* list = a.as_list()) {
    const List* other = b.as_list();
    return other && std::equal(list->items.begin(), list->items.end(), other->items.begin(), other->items.end(), equal);
  }
  if (const Object* object = a.as_object()) {
    const Object* other = b.as_object();
    if (!other || object->items.size() != other->items.size()) return false;
    return std::all_of(object->items.begin(), object->items.end(), [other](const auto& item) {
      const Value* value = other->find(item.first);
      return value && equal(item.second, *value);
    });
  }
  return a.as_namespace() && a.as_namespace() == b.as_namespace();
}

int64_t size_of(const Value& value, int64_t limit) {
  if (const std::string* text = value.as_text()) return 1 + static_cast<int64_t>(text->size() / 64);
  int64_t size = 1;
  if (const List* list = value.as_list()) {
    for (size_t i = 0; i < list->items.size() && size < limit; ++i) size += size_of(list->items[i], limit - size);
  } else if (const Object* object = value.as_object()) {
    for (size_t i = 0; i < object->items.size() && size < limit; ++i)
      size += 1 + static_cast<int64_t>(object->items[i].first.size() / 64) + size_of(object->items[i].second, limit - size);
  }
  return size;
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; });
}

size_t byte_of_character(std::string_view text, int64_t index) {
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0U) == 0x80) continue;
    if (index-- == 0) return i;
  }
  return text.size();
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  const auto is_space = [](char32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
  };
  while (left && !text.empty()) {
    const Utf8Char c = utf8_at(text.data(), text.data() + text.size());
    if (!is_space(c.code)) break;
    text.remove_prefix(static_cast<size_t>(c.size));
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 4 && (static_cast<unsigned char>(text[start]) & 0xc0U) == 0x80) --start;
    const Utf8Char c = utf8_at(text.data() + start, text.data() + text.size());
    if (start + static_cast<size_t>(c.size) != text.size() || !is_space(c.code)) break;
    text.remove_suffix(static_cast<size_t>(c.size));
  }
  return text;
}

}  // namespace based::chat_template
