// Filters, tests and methods of values.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "based/core/text.h"
#include "based/core/utf8.h"
#include "based/serve/templates/evaluate.h"

namespace based::chat_template {
namespace {

Value with_case(const std::string& text, bool upper, Budget& budget) {
  budget.check_text(text.size());
  std::string made = text;
  for (char& c : made) {
    if (upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z') c = static_cast<char>(c ^ ('a' - 'A'));
  }
  return Value::text(std::move(made));
}

std::string text_of(const Value& value, Budget& budget) {
  budget.spend_on(value);
  std::string text;
  append_text(value, text);
  budget.check_text(text.size());
  return text;
}

const std::string& text_argument(const Value* value, std::string_view of) {
  const std::string* text = value ? value->as_text() : nullptr;
  if (!text) throw Error("an argument of '" + std::string(of) + "' must be a string");
  return *text;
}

int64_t whole_argument(const Value* value, int64_t otherwise, const std::string& of) {
  if (!value || value->is_none()) return otherwise;
  if (!value->is_whole()) throw Error("an argument of '" + of + "' must be an integer");
  return value->whole();
}

// Removes characters that are in `set` from the ends.
std::string_view stripped_of(std::string_view text, std::string_view set, bool left, bool right) {
  const auto in_set = [set](std::string_view character) { return set.find(character) != std::string_view::npos; };
  while (left && !text.empty()) {
    const size_t size = byte_of_character(text.substr(0, 5), 1);
    if (!in_set(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xc0U) == 0x80) --start;
    if (!in_set(text.substr(start))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

Value strip(const std::string& text, const Value* set, bool left, bool right, Budget& budget) {
  budget.check_text(text.size());
  if (!set || set->is_none()) return Value::text(std::string(stripped(text, left, right)));
  const std::string& characters = text_argument(set, "strip");
  budget.spend(static_cast<int64_t>((text.size() / 64 + 1) * (characters.size() + 1)));
  return Value::text(std::string(stripped_of(text, characters, left, right)));
}

Value replaced(const std::string& text, const std::string& old, const std::string& with, Budget& budget) {
  if (old.empty()) throw Error("'replace' needs a text to replace");
  std::string made;
  size_t at = 0;
  budget.spend(static_cast<int64_t>(text.size() / 16));
  for (size_t found = text.find(old); found != std::string::npos; found = text.find(old, at)) {
    made.append(text, at, found - at);
    made += with;
    budget.spend(1 + static_cast<int64_t>(with.size() / 64));
    if (made.size() > size_t{1} << 24U) budget.check_text(made.size());
    at = found + old.size();
  }
  made.append(text, at);
  budget.check_text(made.size());
  return Value::text(std::move(made));
}

// Python's str.split: without a separator, at runs of white space.
Value split(const std::string& text, const Value* separator, int64_t most, Budget& budget) {
  std::vector<Value> parts;
  const auto add = [&](std::string_view part) {
    budget.spend(1);
    parts.push_back(Value::text(std::string(part)));
  };
  budget.spend(static_cast<int64_t>(text.size() / 16));
  std::string_view rest = text;
  if (!separator || separator->is_none()) {
    for (rest = stripped(rest, true, false); !rest.empty(); rest = stripped(rest, true, false)) {
      if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
        add(rest);
        break;
      }
      size_t end = 0;
      while (end < rest.size()) {
        const std::string_view character = rest.substr(end, byte_of_character(rest.substr(end, 5), 1));
        if (stripped(character, true, false).empty()) break;
        end += character.size();
      }
      add(rest.substr(0, end));
      rest.remove_prefix(end);
    }
    return make_list(std::move(parts), budget.depth());
  }
  const std::string& mark = text_argument(separator, "split");
  if (mark.empty()) throw Error("the separator of 'split' is empty");
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = rest.find(mark);
    if (found == std::string_view::npos) break;
    add(rest.substr(0, found));
    rest.remove_prefix(found + mark.size());
  }
  add(rest);
  return make_list(std::move(parts), budget.depth());
}

Value length_of(const Value& value, Budget& budget) {
  if (const std::string* text = value.as_text()) {
    budget.spend(static_cast<int64_t>(text->size() / 64));
    return Value::integer(characters(*text));
  }
  if (const List* list = value.as_list()) return Value::integer(static_cast<int64_t>(list->items.size()));
  if (const Object* object = value.as_object()) return Value::integer(static_cast<int64_t>(object->items.size()));
  if (value.is_undefined()) return Value::integer(0);
  throw Error(std::string(value.type_name()) + " has no length");
}

Value pairs_of(const Value& value, Budget& budget) {
  const Object* object = value.as_object();
  if (!object && value.is_undefined()) return make_list({}, budget.depth());
  if (!object) throw Error(std::string(value.type_name()) + " has no items");
  std::vector<Value> pairs;
  pairs.reserve(object->items.size());
  budget.spend(static_cast<int64_t>(object->items.size()));
  for (const auto& [key, item] : object->items) pairs.push_back(make_list({Value::text(key), item}, budget.depth()));
  return make_list(std::move(pairs), budget.depth());
}

Value join(const Value& value, const CallArguments& arguments, Budget& budget) {
  arguments.check(0, 2, {"d", "attribute"});
  const Value *separator = arguments.at(0, "d"), *attribute = arguments.at(1, "attribute");
  const std::string mark = separator ? text_of(*separator, budget) : "";
  std::string made;
  bool first = true;
  for (const Value& element : elements_of(value, budget)) {
    if (!first) made += mark;
    first = false;
    const Value part = attribute && !attribute->is_none() ? item_of(element, *attribute, budget) : element;
    budget.spend_on(part);
    budget.spend(static_cast<int64_t>(mark.size() / 64));
    append_text(part, made);
    if (made.size() > size_t{1} << 24U) budget.check_text(made.size());
  }
  budget.check_text(made.size());
  return Value::text(std::move(made));
}

Value to_json(const Value& value, const CallArguments& arguments, Budget& budget) {
  arguments.check(0, 0, {"indent", "ensure_ascii"});
  const Value* ascii = arguments.named_value("ensure_ascii");
  if (ascii && ascii->truth()) throw Error("tojson(ensure_ascii=true) is not supported");
  const int64_t indent = whole_argument(arguments.named_value("indent"), -1, "tojson");
  if (indent > 16) throw Error("tojson's indent must be at most 16");
  budget.spend_on(value);
  std::string text;
  append_json(value, static_cast<int>(std::max<int64_t>(indent, -1)), 0, text);
  budget.check_text(text.size());
  return Value::text(std::move(text));
}

// Jinja2's int: 0 for a text that is no number.
Value to_whole(const Value& value) {
  if (value.is_whole()) return Value::integer(value.whole());
  if (const auto* real = value.get<double>()) {
    if (!(std::abs(*real) < 9e18)) throw Error("an integer is out of range");
    return Value::integer(static_cast<int64_t>(*real));
  }
  const std::string* text = value.as_text();
  if (!text) return Value::integer(0);
  std::string_view digits = stripped(*text, true, true);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  int64_t whole = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
  if (read.ec == std::errc::result_out_of_range) throw Error("an integer is out of range");
  if (read.ec == std::errc() && read.ptr == digits.data() + digits.size()) return Value::integer(whole);
  double real = 0;
  const auto decimal = std::from_chars(digits.data(), digits.data() + digits.size(), real);
  const bool fits = decimal.ec == std::errc() && decimal.ptr == digits.data() + digits.size() && std::abs(real) < 9e18;
  return Value::integer(fits ? static_cast<int64_t>(real) : 0);
}

Value end_element(const Value& value, bool first, Budget& budget) {
  const std::vector<Value> elements = elements_of(value, budget);
  if (elements.empty()) return Value::undefined(first ? "first" : "last");
  return first ? elements.front() : elements.back();
}

}  // namespace

const Value* CallArguments::named_value(std::string_view name) const {
  const auto found = std::find_if(named.begin(), named.end(), [name](const auto& argument) { return argument.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

const Value* CallArguments::at(size_t index, std::string_view name) const {
  return index < positional.size() ? &positional[index] : named_value(name);
}

void CallArguments::check(size_t least, size_t most, std::initializer_list<std::string_view> names) const {
  if (positional.size() > most || positional.size() + named.size() < least)
    throw Error("expected " + std::to_string(least) + (most == least ? "" : " to " + std::to_string(most)) + " arguments, not " +
                std::to_string(positional.size() + named.size()));
  for (const auto& argument : named) {
    if (std::find(names.begin(), names.end(), argument.first) == names.end()) throw Error("unexpected argument '" + argument.first + "'");
  }
}

Value apply_filter(const std::string& name, const Value& value, const CallArguments& arguments, Budget& budget) {
  if (name == "default" || name == "d") {
    arguments.check(0, 2, {"default_value", "boolean"});
    const Value *otherwise = arguments.at(0, "default_value"), *boolean = arguments.at(1, "boolean");
    const bool missing = value.is_undefined() || (boolean && boolean->truth() && !value.truth());
    return !missing ? value : otherwise ? *otherwise : Value::text("");
  }
  if (name == "tojson") return to_json(value, arguments, budget);
  if (name == "join") return join(value, arguments, budget);
  if (name == "replace") {
    arguments.check(2, 2);
    return replaced(text_of(value, budget), text_of(arguments.positional[0], budget), text_of(arguments.positional[1], budget), budget);
  }
  if (name == "trim") {
    arguments.check(0, 1, {"chars"});
    return strip(text_of(value, budget), arguments.at(0, "chars"), true, true, budget);
  }
  arguments.check(0, 0);
  if (name == "length" || name == "count") return length_of(value, budget);
  if (name == "upper" || name == "lower") return with_case(text_of(value, budget), name == "upper", budget);
  if (name == "first" || name == "last") return end_element(value, name == "first", budget);
  if (name == "list") return make_list(elements_of(value, budget), budget.depth());
  if (name == "items") return pairs_of(value, budget);
  if (name == "int") return to_whole(value);
  return Value::text(text_of(value, budget));  // string
}

bool apply_test(const std::string& name, const Value& value) {
  const bool is_boolean = value.get<bool>() != nullptr;
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.as_text() != nullptr;
  if (name == "boolean") return is_boolean;
  if (name == "integer") return value.get<int64_t>() != nullptr;
  if (name == "float") return value.get<double>() != nullptr;
  if (name == "number") return value.is_number();
  if (name == "mapping") return value.as_object() != nullptr;
  if (name == "true" || name == "false") return is_boolean && *value.get<bool>() == (name == "true");
  return value.as_text() || value.as_list() || value.as_object() || value.is_undefined();  // sequence, iterable
}

Value call_method(const std::string& name, const Value& value, const CallArguments& arguments, Budget& budget) {
  if (const auto* undefined = value.get<Undefined>()) throw Error(in_quotes(undefined->name) + " is undefined");
  if (const Object* object = value.as_object()) {
    if (name == "get") {
      arguments.check(1, 2);
      const Value* found = object->find(text_argument(&arguments.positional[0], name));
      return found ? *found : arguments.positional.size() > 1 ? arguments.positional[1] : Value(Value::Storage(None{}));
    }
    arguments.check(0, 0);
    if (name == "items") return pairs_of(value, budget);
    if (name == "keys") return make_list(elements_of(value, budget), budget.depth());
    if (name == "values") {
      std::vector<Value> values;
      values.reserve(object->items.size());
      budget.spend(static_cast<int64_t>(object->items.size()));
      for (const auto& item : object->items) values.push_back(item.second);
      return make_list(std::move(values), budget.depth());
    }
  }
  const std::string* text = value.as_text();
  if (!text || name == "items" || name == "keys" || name == "values" || name == "get")
    throw Error(std::string(value.type_name()) + " has no method '" + name + "'");
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    arguments.check(0, 1);
    return strip(*text, arguments.at(0, ""), name != "rstrip", name != "lstrip", budget);
  }
  if (name == "startswith" || name == "endswith") {
    arguments.check(1, 1);
    const std::string& part = text_argument(arguments.at(0, ""), name);
    budget.spend(static_cast<int64_t>(part.size() / 64));
    return Value::boolean(name == "startswith" ? text->starts_with(part) : text->ends_with(part));
  }
  if (name == "split") {
    arguments.check(0, 2, {"sep", "maxsplit"});
    return split(*text, arguments.at(0, "sep"), whole_argument(arguments.at(1, "maxsplit"), -1, name), budget);
  }
  if (name == "replace") {
    arguments.check(2, 2);
    return replaced(*text, text_argument(arguments.at(0, ""), name), text_argument(arguments.at(1, ""), name), budget);
  }
  arguments.check(0, 0);
  return with_case(*text, name == "upper", budget);
}

}  // namespace based::chat_template
