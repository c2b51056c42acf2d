#include "based/serve/templates/evaluate.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "based/core/text.h"

namespace based::chat_template {
namespace {

using Variables = std::unordered_map<std::string, Value>;

class Evaluator {
 public:
  Evaluator(const Program& program, const Object& variables, const TemplateLimits& limits)
      : program_(program), variables_(variables), limits_(limits), budget_(limits), scopes_(1) {}

  std::string render() {
    std::string out;
    run(program_.statements, out);
    return out;
  }

 private:
  enum class Flow { normal, leave, next };

  // Runs `work` and adds the place of `at` to the Error that it throws.
  template <class Work>
  auto placed(size_t at, const Work& work) const {
    try {
      return work();
    } catch (const TemplateRenderError&) {
      throw;
    } catch (const Error& error) {
      throw TemplateRenderError(program_.source.place(at) + ": " + error.what());
    }
  }

  void append(const std::string& text, std::string& out) {
    budget_.spend(static_cast<int64_t>(text.size() / 64));
    if (out.size() + text.size() > static_cast<size_t>(limits_.output_bytes))
      throw Error("the prompt is larger than " + std::to_string(limits_.output_bytes) + " bytes");
    out += text;
  }

  Flow run(const Statements& statements, std::string& out) {
    for (const Statement& statement : statements) {
      const Flow flow = run(statement, out);
      if (flow != Flow::normal) return flow;
    }
    return Flow::normal;
  }

  Flow run(const Statement& statement, std::string& out) {
    placed(statement.at, [this] { budget_.spend(1); });
    switch (statement.kind) {
      case Statement::Kind::text: placed(statement.at, [&] { append(statement.text, out); }); break;
      case Statement::Kind::output: {
        const Value value = evaluate(*statement.value);
        placed(statement.at, [&] {
          budget_.spend_on(value);
          std::string text;
          append_text(value, text);
          append(text, out);
        });
        break;
      }
      case Statement::Kind::loop: return loop(statement, out);
      case Statement::Kind::branches:
        for (const Branch& branch : statement.branches)
          if (!branch.condition || evaluate(*branch.condition).truth()) return run(branch.body, out);
        break;
      case Statement::Kind::set: assign(statement, evaluate(*statement.value)); break;
      case Statement::Kind::set_block: {
        std::string text;
        scopes_.emplace_back();
        const Flow flow = run(statement.body, text);
        scopes_.pop_back();
        assign(statement, Value::text(std::move(text)));
        return flow;
      }
      case Statement::Kind::leave: return Flow::leave;
      case Statement::Kind::next: return Flow::next;
    }
    return Flow::normal;
  }

  void assign(const Statement& statement, Value value) {
    placed(statement.at, [&] {
      if (statement.attribute.empty()) {
        bind(statement.targets, std::move(value));
        return;
      }
      const Value target = variable(statement.targets.front());
      Namespace* space = target.as_namespace();
      if (!space) throw Error(in_quotes(statement.targets.front()) + " is " + target.type_name() + ", not a namespace");
      if (value.as_namespace() || value.as_loop()) throw Error(std::string(value.type_name()) + " cannot be an attribute");
      space->attributes[statement.attribute] = std::move(value);
    });
  }

  // Assigns to variables of the innermost scope.
  void bind(const std::vector<std::string>& targets, Value value) {
    if (targets.size() == 1) {
      scopes_.back()[targets.front()] = std::move(value);
      return;
    }
    const std::vector<Value> parts = elements_of(value, budget_);
    if (parts.size() != targets.size())
      throw Error("expected " + std::to_string(targets.size()) + " values, not " + std::to_string(parts.size()));
    for (size_t i = 0; i < targets.size(); ++i) scopes_.back()[targets[i]] = parts[i];
  }

  Flow loop(const Statement& statement, std::string& out) {
    const Value value = evaluate(*statement.value);
    std::vector<Value> elements = placed(statement.at, [&] { return elements_of(value, budget_); });
    if (statement.filter) {
      std::vector<Value> kept;
      for (Value& element : elements) {
        scopes_.emplace_back();
        placed(statement.at, [&] { bind(statement.targets, element); });
        if (evaluate(*statement.filter).truth()) kept.push_back(std::move(element));
        scopes_.pop_back();
      }
      elements = std::move(kept);
    }
    if (elements.empty()) {
      scopes_.emplace_back();
      const Flow flow = run(statement.otherwise, out);
      scopes_.pop_back();
      return flow;
    }
    const auto length = static_cast<int64_t>(elements.size());
    for (int64_t i = 0; i < length; ++i) {
      placed(statement.at, [this] { budget_.spend(1); });
      scopes_.emplace_back();
      scopes_.back()["loop"] = Value(Value::Storage(std::make_shared<const LoopState>(LoopState{i, length})));
      placed(statement.at, [&] { bind(statement.targets, std::move(elements[static_cast<size_t>(i)])); });
      const Flow flow = run(statement.body, out);
      scopes_.pop_back();
      if (flow == Flow::leave) break;
    }
    return Flow::normal;
  }

  Value variable(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    const Value* found = variables_.find(name);
    return found ? *found : Value::undefined(name);
  }

  Value evaluate(const Expression& expression) {
    placed(expression.at, [this] { budget_.spend(1); });
    const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
    switch (expression.kind) {
      case Expression::Kind::constant: return expression.value;
      case Expression::Kind::name: return variable(expression.name);
      case Expression::Kind::list:
      case Expression::Kind::object: return collection(expression);
      case Expression::Kind::any:
      case Expression::Kind::all: {
        Value value = operand(0);
        for (size_t i = 1; i < expression.operands.size(); ++i) {
          if (value.truth() == (expression.kind == Expression::Kind::any)) break;
          value = operand(i);
        }
        return value;
      }
      case Expression::Kind::inverse: return Value::boolean(!operand(0).truth());
      case Expression::Kind::comparison: {
        Value left = operand(0);
        for (size_t i = 0; i < expression.operators.size(); ++i) {
          Value right = operand(i + 1);
          if (!placed(expression.at, [&] { return compare(expression.operators[i], left, right, budget_); })) return Value::boolean(false);
          left = std::move(right);
        }
        return Value::boolean(true);
      }
      case Expression::Kind::arithmetic: {
        Value left = operand(0);
        for (size_t i = 0; i < expression.operators.size(); ++i) {
          const Value right = operand(i + 1);
          left = placed(expression.at, [&] { return arithmetic(expression.operators[i], left, right, budget_); });
        }
        return left;
      }
      case Expression::Kind::concatenation: return concatenation(expression);
      case Expression::Kind::negative: {
        const Value value = operand(0);
        return placed(expression.at, [&] { return arithmetic(expression.operators[0], Value::integer(0), value, budget_); });
      }
      case Expression::Kind::condition:
        if (operand(1).truth()) return operand(0);
        return expression.operands.size() > 2 ? operand(2) : Value::undefined("the value of an 'if' without 'else'");
      case Expression::Kind::call: return function(expression);
      case Expression::Kind::postfix: {
        Value value = operand(0);
        for (const Operation& operation : expression.operations) value = apply(operation, value);
        return value;
      }
    }
    return {};
  }

  Value collection(const Expression& expression) {
    std::vector<Value> values;
    values.reserve(expression.operands.size());
    for (const ExpressionPointer& element : expression.operands) values.push_back(evaluate(*element));
    return placed(expression.at, [&] {
      if (expression.kind == Expression::Kind::list) return make_list(std::move(values), budget_.depth());
      std::vector<std::pair<std::string, Value>> items;
      items.reserve(values.size() / 2);
      for (size_t i = 0; i + 1 < values.size(); i += 2) {
        if (!values[i].as_text()) throw Error("a key of an object must be a string");
        items.emplace_back(*values[i].as_text(), std::move(values[i + 1]));
      }
      return make_object(std::move(items), budget_.depth());
    });
  }

  Value concatenation(const Expression& expression) {
    std::string text;
    for (const ExpressionPointer& element : expression.operands) {
      const Value value = evaluate(*element);
      placed(expression.at, [&] {
        budget_.spend_on(value);
        append_text(value, text);
        budget_.check_text(text.size());
      });
    }
    return Value::text(std::move(text));
  }

  CallArguments arguments_of(const std::vector<Argument>& arguments) {
    CallArguments evaluated;
    for (const Argument& argument : arguments) {
      if (argument.name.empty())
        evaluated.positional.push_back(evaluate(*argument.value));
      else
        evaluated.named.emplace_back(argument.name, evaluate(*argument.value));
    }
    return evaluated;
  }

  Value apply(const Operation& operation, const Value& value) {
    placed(operation.at, [this] { budget_.spend(1); });
    switch (operation.kind) {
      case Operation::Kind::attribute: return placed(operation.at, [&] { return attribute_of(value, operation.name); });
      case Operation::Kind::item: {
        const Value index = evaluate(*operation.arguments.front().value);
        return placed(operation.at, [&] { return item_of(value, index, budget_); });
      }
      case Operation::Kind::slice: {
        const auto end = [&](size_t i) { return operation.arguments[i].value ? evaluate(*operation.arguments[i].value) : Value(); };
        const Value from = end(0), to = end(1);
        return placed(operation.at, [&] { return slice(operation, value, from, to); });
      }
      case Operation::Kind::method:
      case Operation::Kind::filter: {
        const CallArguments arguments = arguments_of(operation.arguments);
        return placed(operation.at, [&] {
          return operation.kind == Operation::Kind::method ? call_method(operation.name, value, arguments, budget_)
                                                           : apply_filter(operation.name, value, arguments, budget_);
        });
      }
      case Operation::Kind::test: return Value::boolean(apply_test(operation.name, value));
      case Operation::Kind::negated_test: return Value::boolean(!apply_test(operation.name, value));
    }
    return {};
  }

  // With a third argument, whose only supported value is -1, the reversed list of [::-1].
  Value slice(const Operation& operation, const Value& value, const Value& from, const Value& to) {
    if (operation.arguments.size() < 3) return slice_of(value, from, to, budget_);
    const Value step = evaluate(*operation.arguments[2].value);
    if (!step.is_whole() || step.whole() != -1 || !from.is_undefined() || !to.is_undefined() || !value.as_list())
      throw Error("the only supported step of a slice is that of list[::-1]");
    std::vector<Value> items = elements_of(value, budget_);
    std::reverse(items.begin(), items.end());
    return make_list(std::move(items), budget_.depth());
  }

  Value function(const Expression& expression) {
    const CallArguments arguments = arguments_of(expression.arguments);
    return placed(expression.at, [&] { return call(expression.name, arguments); });
  }

  Value call(const std::string& name, const CallArguments& arguments) {
    if (name == "raise_exception") {
      arguments.check(1, 1);
      std::string message;
      append_text(arguments.positional.front(), message);
      throw Error(message);
    }
    if (name == "namespace") {
      auto space = std::make_shared<Namespace>();
      if (!arguments.positional.empty()) throw Error("arguments of 'namespace' need names");
      for (const auto& [key, value] : arguments.named) {
        if (value.as_namespace() || value.as_loop()) throw Error(std::string(value.type_name()) + " cannot be an attribute");
        space->attributes[key] = value;
      }
      return Value(Value::Storage(std::move(space)));
    }
    arguments.check(1, 3);
    for (const Value& value : arguments.positional)
      if (!value.is_whole()) throw Error(std::string("an argument of 'range' is ") + value.type_name() + ", not an integer");
    const auto& given = arguments.positional;
    const int64_t first = given.size() > 1 ? given[0].whole() : 0, end = given[given.size() > 1 ? 1 : 0].whole();
    const int64_t step = given.size() > 2 ? given[2].whole() : 1;
    if (step == 0) throw Error("the step of 'range' is 0");
    std::vector<Value> values;
    for (int64_t value = first; step > 0 ? value < end : value > end;) {
      budget_.spend(1);
      values.push_back(Value::integer(value));
      if (__builtin_add_overflow(value, step, &value)) break;
    }
    return make_list(std::move(values), budget_.depth());
  }

  const Program& program_;
  const Object& variables_;
  const TemplateLimits& limits_;
  Budget budget_;
  std::vector<Variables> scopes_;
};

}  // namespace

std::string evaluate(const Program& program, const Object& variables, const TemplateLimits& limits) {
  return Evaluator(program, variables, limits).render();
}

}  // namespace based::chat_template
