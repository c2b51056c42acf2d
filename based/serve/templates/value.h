// Values of a template, with Python's rules for text, truth and comparison.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "based/core/json.h"

namespace based::chat_template {

class Value;
struct LoopState;

using Text = std::shared_ptr<const std::string>;

struct Undefined {
  std::string name;  // the missing variable or attribute, for messages
};
struct None {};

// Lists and objects know how deeply they nest, so that a template cannot make a value whose recursion overflows the stack.
struct List {
  std::vector<Value> items;
  int depth = 1;
};
struct Object {
  std::vector<std::pair<std::string, Value>> items;     // in the order of insertion
  std::unordered_map<std::string_view, size_t> places;  // key -> index in `items`
  int depth = 1;

  const Value* find(std::string_view key) const;
};
// The only mutable value. It cannot be an element of another value, which rules out cycles.
struct Namespace {
  std::unordered_map<std::string, Value> attributes;
};

class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const List>, std::shared_ptr<const Object>,
                               std::shared_ptr<Namespace>, std::shared_ptr<const LoopState>>;

  Value() = default;
  Value(Storage storage) : storage_(std::move(storage)) {}  // NOLINT(google-explicit-constructor)
  static Value text(std::string text) { return {Storage(std::make_shared<const std::string>(std::move(text)))}; }
  static Value integer(int64_t value) { return {Storage(value)}; }
  static Value boolean(bool value) { return {Storage(value)}; }
  static Value undefined(std::string name) { return {Storage(Undefined{std::move(name)})}; }

  template <class T>
  const T* get() const {
    return std::get_if<T>(&storage_);
  }
  const std::string* as_text() const;
  const List* as_list() const;
  const Object* as_object() const;
  Namespace* as_namespace() const;
  const LoopState* as_loop() const;

  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  bool is_number() const { return get<int64_t>() != nullptr || get<double>() != nullptr || get<bool>() != nullptr; }
  bool is_whole() const { return get<int64_t>() != nullptr || get<bool>() != nullptr; }
  int64_t whole() const;  // requires an integer or a boolean
  double number() const;  // requires a number
  bool truth() const;
  int depth() const;  // 0 for values without elements
  const char* type_name() const;

 private:
  Storage storage_{Undefined{}};
};

struct LoopState {
  int64_t index0 = 0, length = 0;
};

// Makes a list or an object. Throws Error if it nests more than `limit` levels or contains a namespace or a loop.
Value make_list(std::vector<Value> items, int limit);
Value make_object(std::vector<std::pair<std::string, Value>> items, int limit);  // the last value of a repeated key counts

Value from_json(const Json& json);

// Python's str() and repr(); both append.
void append_text(const Value& value, std::string& out);
void append_repr(const Value& value, std::string& out);
// Python's json.dumps with ensure_ascii=False; indent < 0 gives one line. Throws Error for values that JSON lacks.
void append_json(const Value& value, int indent, int level, std::string& out);

// Python's ==.
bool equal(const Value& a, const Value& b);
// The number of values and of blocks of 64 bytes of text, at most about `limit`: the cost of work on a whole value.
int64_t size_of(const Value& value, int64_t limit);

// Characters, for which Python counts code points.
int64_t characters(std::string_view text);
size_t byte_of_character(std::string_view text, int64_t index);  // the offset of a character; the size for the number of characters
std::string_view stripped(std::string_view text, bool left, bool right);  // without Python's white space

}  // namespace based::chat_template
