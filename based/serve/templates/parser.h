// The syntax tree of a template.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "based/serve/templates/lexer.h"
#include "based/serve/templates/value.h"

namespace based::chat_template {

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct Argument {
  std::string name;  // empty: positional
  ExpressionPointer value;
};

// An operation after an operand: .name, [item], [from:to], .name(...), | name(...), is name.
struct Operation {
  enum class Kind { attribute, item, slice, method, filter, test, negated_test };
  Kind kind = Kind::attribute;
  std::string name;
  std::vector<Argument> arguments;  // for `slice`: from and to, which may be null
  size_t at = 0;
};

struct Expression {
  enum class Kind {
    constant,
    name,
    list,
    object,
    any,
    all,
    inverse,
    comparison,
    arithmetic,
    concatenation,
    negative,
    condition,
    call,
    postfix
  };
  Kind kind = Kind::constant;
  size_t at = 0;
  Value value;                              // for `constant`
  std::string name;                         // for `name` and `call`
  std::vector<ExpressionPointer> operands;  // `object`: keys and values in turn; `condition`: then, condition, else (may be absent)
  std::vector<std::string> operators;       // between operands, of `comparison` and `arithmetic`
  std::vector<Operation> operations;        // for `postfix`, applied to the only operand
  std::vector<Argument> arguments;          // for `call`
};

struct Statement;
using Statements = std::vector<Statement>;

struct Branch {
  ExpressionPointer condition;  // null: else
  Statements body;
};

struct Statement {
  enum class Kind { text, output, loop, branches, set, set_block, leave, next };
  Kind kind = Kind::text;
  size_t at = 0;
  std::string text = {};                  // for `text`
  std::vector<std::string> targets = {};  // for `loop` and `set`
  std::string attribute = {};             // for `set`: targets[0] is a namespace
  ExpressionPointer value = {};           // the output, the loop's elements or the new value
  ExpressionPointer filter = {};          // `for ... if`, or null
  Statements body = {}, otherwise = {};
  std::vector<Branch> branches = {};
};

// Throws Error as "<name>:<line>:<column>: <reason>". `depth` limits the nesting of statements and expressions together.
Statements parse_template(const Source& source, int depth);

}  // namespace based::chat_template
