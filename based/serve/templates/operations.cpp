// Operators, attributes, items and slices of values, with Python's rules.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "based/core/text.h"
#include "based/serve/templates/evaluate.h"

namespace based::chat_template {
namespace {

[[noreturn]] void no_operator(const std::string& symbol, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (const auto* undefined = value->get<Undefined>()) throw Error(in_quotes(undefined->name) + " is undefined");
  throw Error("'" + symbol + "' cannot be applied to " + a.type_name() + " and " + b.type_name());
}

Value whole_arithmetic(const std::string& symbol, int64_t a, int64_t b) {
  int64_t result = 0;
  if (symbol == "/" || symbol == "//" || symbol == "%") {
    if (b == 0) throw Error("division by zero");
    if (symbol == "/") return {Value::Storage(static_cast<double>(a) / static_cast<double>(b))};
    if (b == -1) {
      if (symbol == "%") return Value::integer(0);
      if (__builtin_sub_overflow(int64_t{0}, a, &result)) throw Error("an integer is out of range");
      return Value::integer(result);
    }
    const int64_t rest = a % b, shift = rest != 0 && (rest < 0) != (b < 0) ? 1 : 0;  // Python rounds down
    return Value::integer(symbol == "%" ? rest + shift * b : a / b - shift);
  }
  const bool overflow = symbol == "+"   ? __builtin_add_overflow(a, b, &result)
                        : symbol == "-" ? __builtin_sub_overflow(a, b, &result)
                                        : __builtin_mul_overflow(a, b, &result);
  if (overflow) throw Error("an integer is out of range");
  return Value::integer(result);
}

Value real_arithmetic(const std::string& symbol, double a, double b) {
  double result = 0;
  if (symbol == "+") {
    result = a + b;
  } else if (symbol == "-") {
    result = a - b;
  } else if (symbol == "*") {
    result = a * b;
  } else {
    if (b == 0) throw Error("division by zero");
    if (symbol == "/") {
      result = a / b;
    } else {
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      result = symbol == "%" ? rest : std::floor((a - rest) / b + 0.5);
    }
  }
  return {Value::Storage(result)};
}

Value repeated(const Value& value, int64_t times, Budget& budget) {
  times = std::max<int64_t>(times, 0);
  if (const std::string* text = value.as_text()) {
    if (!text->empty() && times > budget.steps() * 64) throw Error("a string is too long");
    budget.check_text(text->size() * static_cast<size_t>(text->empty() ? 0 : times));
    std::string made;
    made.reserve(text->size() * static_cast<size_t>(text->empty() ? 0 : times));
    for (int64_t i = 0; i < times && !text->empty(); ++i) made += *text;
    return Value::text(std::move(made));
  }
  const List& list = *value.as_list();
  const auto size = static_cast<int64_t>(list.items.size());
  if (size > 0 && times > budget.steps() / size) throw Error("a list is too long");
  budget.spend(size * times);
  std::vector<Value> items;
  for (int64_t i = 0; i < times && size > 0; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
  return make_list(std::move(items), budget.depth());
}

int64_t index_of(const Value& value, int64_t size, int64_t missing) {
  if (value.is_undefined() || value.is_none()) return missing;
  if (!value.is_whole()) throw Error(std::string("a slice's end is ") + value.type_name() + ", not an integer");
  const int64_t index = value.whole();
  return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
}

bool contains_value(const Value& a, const Value& b, Budget& budget) {
  if (const std::string* text = b.as_text()) {
    const std::string* part = a.as_text();
    if (!part) no_operator("in", a, b);
    budget.spend(1 + static_cast<int64_t>(text->size() / 16));
    return text->find(*part) != std::string::npos;
  }
  if (const Object* object = b.as_object()) return a.as_text() && object->find(*a.as_text());
  if (b.is_undefined()) return false;
  const List* list = b.as_list();
  if (!list) no_operator("in", a, b);
  return std::any_of(list->items.begin(), list->items.end(), [&](const Value& item) {
    budget.spend_on(item);
    return equal(a, item);
  });
}

}  // namespace

void Budget::spend(int64_t steps) {
  spent_ += steps;
  if (spent_ > limits_.steps) throw Error("the template needs more than " + std::to_string(limits_.steps) + " steps");
}

void Budget::spend_on(const Value& value) { spend(size_of(value, limits_.steps)); }

void Budget::check_text(size_t bytes) {
  if (bytes > static_cast<size_t>(limits_.output_bytes))
    throw Error("a text is larger than " + std::to_string(limits_.output_bytes) + " bytes");
  spend(static_cast<int64_t>(bytes / 64));
}

Value joined_text(std::string a, std::string_view b, Budget& budget) {
  budget.check_text(a.size() + b.size());
  a += b;
  return Value::text(std::move(a));
}

Value arithmetic(const std::string& symbol, const Value& a, const Value& b, Budget& budget) {
  if (a.is_whole() && b.is_whole()) return whole_arithmetic(symbol, a.whole(), b.whole());
  if (a.is_number() && b.is_number()) return real_arithmetic(symbol, a.number(), b.number());
  if (symbol == "+" && a.as_text() && b.as_text()) return joined_text(*a.as_text(), *b.as_text(), budget);
  if (symbol == "+" && a.as_list() && b.as_list()) {
    std::vector<Value> items = a.as_list()->items;
    budget.spend(static_cast<int64_t>(items.size() + b.as_list()->items.size()));
    items.insert(items.end(), b.as_list()->items.begin(), b.as_list()->items.end());
    return make_list(std::move(items), budget.depth());
  }
  if (symbol == "*" && b.is_whole() && (a.as_text() || a.as_list())) return repeated(a, b.whole(), budget);
  if (symbol == "*" && a.is_whole() && (b.as_text() || b.as_list())) return repeated(b, a.whole(), budget);
  no_operator(symbol, a, b);
}

bool compare(const std::string& symbol, const Value& a, const Value& b, Budget& budget) {
  if (symbol == "in") return contains_value(a, b, budget);
  if (symbol == "not in") return !contains_value(a, b, budget);
  budget.spend_on(a);
  if (symbol == "==") return equal(a, b);
  if (symbol == "!=") return !equal(a, b);
  int order = 0;
  if (a.is_whole() && b.is_whole())
    order = a.whole() < b.whole() ? -1 : a.whole() > b.whole();
  else if (a.is_number() && b.is_number())
    order = a.number() < b.number() ? -1 : a.number() > b.number();
  else if (a.as_text() && b.as_text())
    order = a.as_text()->compare(*b.as_text());
  else
    no_operator(symbol, a, b);
  if (symbol == "<") return order < 0;
  if (symbol == "<=") return order <= 0;
  return symbol == ">" ? order > 0 : order >= 0;
}

std::vector<Value> elements_of(const Value& value, Budget& budget) {
  std::vector<Value> elements;
  if (const List* list = value.as_list()) {
    budget.spend(static_cast<int64_t>(list->items.size()));
    return list->items;
  }
  if (const Object* object = value.as_object()) {
    budget.spend(static_cast<int64_t>(object->items.size()));
    elements.reserve(object->items.size());
    for (const auto& item : object->items) elements.push_back(Value::text(item.first));
    return elements;
  }
  if (const std::string* text = value.as_text()) {
    const auto size = static_cast<size_t>(characters(*text));
    budget.spend(static_cast<int64_t>(size));
    elements.reserve(size);
    for (size_t at = 0; at < text->size();) {
      const size_t next = at + byte_of_character(std::string_view(*text).substr(at, 5), 1);
      elements.push_back(Value::text(text->substr(at, next - at)));
      at = next;
    }
    return elements;
  }
  if (value.is_undefined()) return elements;
  throw Error(std::string(value.type_name()) + " cannot be iterated over");
}

Value attribute_of(const Value& value, const std::string& name) {
  if (const Object* object = value.as_object()) {
    const Value* found = object->find(name);
    return found ? *found : Value::undefined(name);
  }
  if (const Namespace* space = value.as_namespace()) {
    const auto found = space->attributes.find(name);
    return found == space->attributes.end() ? Value::undefined(name) : found->second;
  }
  if (const LoopState* loop = value.as_loop()) {
    if (name == "index") return Value::integer(loop->index0 + 1);
    if (name == "index0") return Value::integer(loop->index0);
    if (name == "revindex") return Value::integer(loop->length - loop->index0);
    if (name == "revindex0") return Value::integer(loop->length - loop->index0 - 1);
    if (name == "first") return Value::boolean(loop->index0 == 0);
    if (name == "last") return Value::boolean(loop->index0 + 1 == loop->length);
    if (name == "length") return Value::integer(loop->length);
    throw Error("loop." + name + " is not supported");
  }
  if (const auto* undefined = value.get<Undefined>()) throw Error(in_quotes(undefined->name) + " is undefined");
  return Value::undefined(name);
}

Value item_of(const Value& value, const Value& index, Budget& budget) {
  if (const std::string* name = index.as_text()) return attribute_of(value, *name);
  if (const auto* undefined = value.get<Undefined>()) throw Error(in_quotes(undefined->name) + " is undefined");
  if (!index.is_whole()) return Value::undefined("item");
  int64_t at = index.whole();
  if (const List* list = value.as_list()) {
    if (at < 0) at += static_cast<int64_t>(list->items.size());
    return at >= 0 && at < static_cast<int64_t>(list->items.size()) ? list->items[static_cast<size_t>(at)] : Value::undefined("item");
  }
  if (const std::string* text = value.as_text()) {
    budget.spend(static_cast<int64_t>(text->size() / 64));
    const int64_t size = characters(*text);
    if (at < 0) at += size;
    if (at < 0 || at >= size) return Value::undefined("item");
    const size_t start = byte_of_character(*text, at);
    return Value::text(text->substr(start, byte_of_character(std::string_view(*text).substr(start, 5), 1)));
  }
  return Value::undefined("item");
}

Value slice_of(const Value& value, const Value& from, const Value& to, Budget& budget) {
  if (const List* list = value.as_list()) {
    const auto size = static_cast<int64_t>(list->items.size());
    const int64_t first = index_of(from, size, 0), last = std::max(first, index_of(to, size, size));
    budget.spend(last - first);
    return make_list({list->items.begin() + first, list->items.begin() + last}, budget.depth());
  }
  if (const std::string* text = value.as_text()) {
    const int64_t size = characters(*text);
    const int64_t first = index_of(from, size, 0), last = std::max(first, index_of(to, size, size));
    const size_t start = byte_of_character(*text, first), end = byte_of_character(*text, last);
    budget.check_text(text->size());
    return Value::text(text->substr(start, end - start));
  }
  if (const auto* undefined = value.get<Undefined>()) throw Error(in_quotes(undefined->name) + " is undefined");
  throw Error(std::string(value.type_name()) + " cannot be sliced");
}

}  // namespace based::chat_template
