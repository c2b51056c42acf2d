// Evaluates a parsed template.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "based/serve/templates/chat_template.h"
#include "based/serve/templates/parser.h"
#include "based/serve/templates/value.h"

namespace based::chat_template {

struct Program {
  Source source;
  Statements statements;
};

// The work that a rendering may still do. Functions throw Error beyond the limits.
class Budget {
 public:
  explicit Budget(const TemplateLimits& limits) : limits_(limits) {}
  void spend(int64_t steps);
  void spend_on(const Value& value);           // a walk through the whole value
  void check_text(size_t bytes);               // a string of this size is about to be made
  int depth() const { return limits_.depth; }  // nesting of values
  int64_t steps() const { return limits_.steps; }

 private:
  const TemplateLimits& limits_;
  int64_t spent_ = 0;
};

// The evaluated arguments of a filter, a method or a function.
struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  const Value* named_value(std::string_view name) const;
  // The argument at `index`, or that called `name`; null if there is none.
  const Value* at(size_t index, std::string_view name) const;
  // Throws Error if more arguments were given, or other names.
  void check(size_t least, size_t most, std::initializer_list<std::string_view> names = {}) const;
};

// All throw Error whose message has no place; the evaluator adds it.
Value apply_filter(const std::string& name, const Value& value, const CallArguments& arguments, Budget& budget);
bool apply_test(const std::string& name, const Value& value);
Value call_method(const std::string& name, const Value& value, const CallArguments& arguments, Budget& budget);
std::vector<Value> elements_of(const Value& value, Budget& budget);  // a list's elements, an object's keys, a string's characters
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& index, Budget& budget);
// The slice [from:to] of a list or a string; None and undefined are the ends.
Value slice_of(const Value& value, const Value& from, const Value& to, Budget& budget);
Value arithmetic(const std::string& symbol, const Value& a, const Value& b, Budget& budget);
bool compare(const std::string& symbol, const Value& a, const Value& b, Budget& budget);
Value joined_text(std::string a, std::string_view b, Budget& budget);

// `variables` is an object.
std::string evaluate(const Program& program, const Object& variables, const TemplateLimits& limits);

}  // namespace based::chat_template
