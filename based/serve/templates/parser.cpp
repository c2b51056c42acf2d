#include "based/serve/templates/parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "based/core/text.h"

namespace based::chat_template {
namespace {

using Kind = Expression::Kind;

constexpr std::array<std::string_view, 16> kFilters{"trim", "tojson", "length", "count", "upper",  "lower", "default", "d",
                                                    "join", "first",  "last",   "list",  "string", "int",   "replace", "items"};
constexpr std::array<std::string_view, 13> kTests{"defined", "undefined", "none",     "string",   "boolean", "integer", "float",
                                                  "number",  "mapping",   "sequence", "iterable", "true",    "false"};
constexpr std::array<std::string_view, 13> kMethods{"strip", "lstrip",  "rstrip", "startswith", "endswith", "upper", "lower",
                                                    "split", "replace", "items",  "keys",       "values",   "get"};
constexpr std::array<std::string_view, 3> kFunctions{"raise_exception", "range", "namespace"};

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Counts nesting for the time of a function's call.
class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  ~Deeper() { --depth_; }

 private:
  int& depth_;
};

// Parses the words of one tag.
class TagParser {
 public:
  TagParser(const Source& source, const Piece& piece, int& depth, int limit)
      : source_(source), words_(piece.words), depth_(depth), limit_(limit) {}

  const Word& word() const { return words_[at_]; }
  bool is_symbol(std::string_view text) const { return word().kind == Word::Kind::symbol && word().text == text; }
  bool is_name(std::string_view text) const { return word().kind == Word::Kind::name && word().text == text; }
  bool skip_symbol(std::string_view text) { return is_symbol(text) && next(); }
  bool skip_name(std::string_view text) { return is_name(text) && next(); }
  [[noreturn]] void fail(const std::string& reason) const { source_.fail(word().at, reason); }
  [[noreturn]] void unexpected(const std::string& wanted) const {
    fail("expected " + wanted + (word().kind == Word::Kind::end ? " before the tag's end" : ", not " + in_quotes(word().text)));
  }
  void expect_symbol(const std::string& text) {
    if (!skip_symbol(text)) unexpected("'" + text + "'");
  }
  std::string expect_name(const std::string& what) {
    if (word().kind != Word::Kind::name) unexpected(what);
    return words_[at_++].text;
  }
  void expect_end() const {
    if (word().kind != Word::Kind::end) unexpected("the tag's end");
  }

  ExpressionPointer expression() {
    const Deeper deeper(depth_);
    check_depth();
    const size_t at = word().at;
    ExpressionPointer value = disjunction();
    if (!skip_name("if")) return value;
    ExpressionPointer condition = make(Kind::condition, at);
    condition->operands.push_back(std::move(value));
    condition->operands.push_back(disjunction());
    if (skip_name("else")) condition->operands.push_back(expression());
    return condition;
  }

  // The list of a loop ends before `if`, which filters it.
  ExpressionPointer disjunction() {
    return chain(Kind::any, "or", [this] { return chain(Kind::all, "and", [this] { return inverse(); }); });
  }

 private:
  bool next() {
    ++at_;
    return true;
  }
  void check_depth() const {
    if (depth_ > limit_) fail("more than " + std::to_string(limit_) + " nested statements and expressions");
  }
  static ExpressionPointer make(Kind kind, size_t at) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->at = at;
    return made;
  }
  static ExpressionPointer constant(Value value, size_t at) {
    ExpressionPointer made = make(Kind::constant, at);
    made->value = std::move(value);
    return made;
  }

  template <class Operand>
  ExpressionPointer chain(Kind kind, std::string_view name, const Operand& operand) {
    const size_t at = word().at;
    ExpressionPointer first = operand();
    if (!is_name(name)) return first;
    ExpressionPointer made = make(kind, at);
    made->operands.push_back(std::move(first));
    while (skip_name(name)) made->operands.push_back(operand());
    return made;
  }

  template <class Operand>
  ExpressionPointer chain(Kind kind, std::initializer_list<std::string_view> symbols, const Operand& operand) {
    const auto at_operator = [&] { return word().kind == Word::Kind::symbol && contains(symbols, word().text); };
    ExpressionPointer first = operand();
    if (!at_operator()) return first;
    ExpressionPointer made = make(kind, word().at);
    made->operands.push_back(std::move(first));
    while (at_operator()) {
      made->operators.push_back(words_[at_++].text);
      made->operands.push_back(operand());
    }
    return made;
  }

  ExpressionPointer inverse() {
    const size_t at = word().at;
    if (!skip_name("not")) return comparison();
    const Deeper deeper(depth_);
    check_depth();
    ExpressionPointer made = make(Kind::inverse, at);
    made->operands.push_back(inverse());
    return made;
  }

  ExpressionPointer comparison() {
    constexpr std::array<std::string_view, 6> symbols{"==", "!=", "<", "<=", ">", ">="};
    ExpressionPointer first = sum();
    ExpressionPointer made;
    while (true) {
      std::string name;
      const size_t at = word().at;
      if (word().kind == Word::Kind::symbol && contains(symbols, word().text)) {
        name = words_[at_++].text;
      } else if (skip_name("in")) {
        name = "in";
      } else if (is_name("not") && words_[at_ + 1].kind == Word::Kind::name && words_[at_ + 1].text == "in") {
        at_ += 2;
        name = "not in";
      } else {
        return made ? std::move(made) : std::move(first);
      }
      if (!made) {
        made = make(Kind::comparison, at);
        made->operands.push_back(std::move(first));
      }
      made->operators.push_back(std::move(name));
      made->operands.push_back(sum());
    }
  }

  ExpressionPointer sum() {
    return chain(Kind::arithmetic, {"+", "-"}, [this] {
      return chain(Kind::concatenation, {"~"}, [this] {
        return chain(Kind::arithmetic, {"*", "/", "//", "%"}, [this] { return operand(true); });
      });
    });
  }

  ExpressionPointer operand(bool filtered) {
    const size_t at = word().at;
    if (is_symbol("**")) fail("powers are not supported");
    ExpressionPointer made;
    if (is_symbol("-") || is_symbol("+")) {
      const bool negative = is_symbol("-");
      next();
      const Deeper deeper(depth_);
      check_depth();
      made = make(Kind::negative, at);
      made->operators.emplace_back(negative ? "-" : "+");
      made->operands.push_back(operand(false));
    } else {
      made = primary();
    }
    std::vector<Operation> operations;
    while (postfix(operations) || (filtered && filter_or_test(operations))) {}
    if (is_symbol("**")) fail("powers are not supported");
    if (operations.empty()) return made;
    ExpressionPointer whole = make(Kind::postfix, at);
    whole->operands.push_back(std::move(made));
    whole->operations = std::move(operations);
    return whole;
  }

  bool postfix(std::vector<Operation>& operations) {
    const size_t at = word().at;
    if (skip_symbol(".")) {
      if (word().kind == Word::Kind::whole) {
        std::vector<Argument> index;
        index.push_back({"", number()});
        operations.push_back({Operation::Kind::item, "", std::move(index), at});
        return true;
      }
      const std::string name = expect_name("an attribute's name");
      if (!is_symbol("(")) {
        operations.push_back({Operation::Kind::attribute, name, {}, at});
        return true;
      }
      if (!contains(kMethods, name)) source_.fail(at, "the method '" + name + "' is not supported");
      operations.push_back({Operation::Kind::method, name, arguments(), at});
      return true;
    }
    if (skip_symbol("[")) {
      operations.push_back(subscript(at));
      return true;
    }
    if (is_symbol("(")) fail("only functions and methods can be called");
    return false;
  }

  Operation subscript(size_t at) {
    Operation made{Operation::Kind::item, "", {}, at};
    ExpressionPointer from = is_symbol(":") ? nullptr : expression();
    made.arguments.push_back({"", std::move(from)});
    if (skip_symbol(":")) {
      made.kind = Operation::Kind::slice;
      ExpressionPointer to = is_symbol("]") || is_symbol(":") ? nullptr : expression();
      made.arguments.push_back({"", std::move(to)});
      if (skip_symbol(":")) made.arguments.push_back({"", expression()});
    }
    expect_symbol("]");
    return made;
  }

  bool filter_or_test(std::vector<Operation>& operations) {
    const size_t at = word().at;
    if (skip_symbol("|")) {
      const std::string name = expect_name("a filter's name");
      if (!contains(kFilters, name)) source_.fail(at, "the filter '" + name + "' is not supported");
      operations.push_back({Operation::Kind::filter, name, is_symbol("(") ? arguments() : std::vector<Argument>(), at});
      return true;
    }
    if (!skip_name("is")) return false;
    const bool negated = skip_name("not");
    std::string name = expect_name("a test's name");
    if (name == "None" || name == "True" || name == "False") name[0] = static_cast<char>(name[0] + ('a' - 'A'));
    if (!contains(kTests, name)) source_.fail(at, "the test '" + name + "' is not supported");
    operations.push_back({negated ? Operation::Kind::negated_test : Operation::Kind::test, name, {}, at});
    return true;
  }

  std::vector<Argument> arguments() {
    expect_symbol("(");
    std::vector<Argument> made;
    while (!skip_symbol(")")) {
      if (!made.empty()) {
        expect_symbol(",");
        if (skip_symbol(")")) break;
      }
      std::string name;
      if (word().kind == Word::Kind::name && words_[at_ + 1].kind == Word::Kind::symbol && words_[at_ + 1].text == "=") {
        name = word().text;
        at_ += 2;
      } else if (!made.empty() && !made.back().name.empty()) {
        fail("a positional argument after a named one");
      }
      ExpressionPointer value = expression();
      made.push_back({std::move(name), std::move(value)});
    }
    return made;
  }

  ExpressionPointer number() {
    const Word& digits = words_[at_++];
    const char* end = digits.text.data() + digits.text.size();
    if (digits.kind == Word::Kind::real) {
      double value = 0;
      if (std::from_chars(digits.text.data(), end, value).ec != std::errc()) source_.fail(digits.at, "the number is out of range");
      return constant(Value(Value::Storage(value)), digits.at);
    }
    int64_t value = 0;
    if (std::from_chars(digits.text.data(), end, value).ec != std::errc()) source_.fail(digits.at, "the number is out of range");
    return constant(Value::integer(value), digits.at);
  }

  ExpressionPointer primary() {
    const size_t at = word().at;
    switch (word().kind) {
      case Word::Kind::text: {
        std::string text;
        while (word().kind == Word::Kind::text) text += words_[at_++].text;
        return constant(Value::text(std::move(text)), at);
      }
      case Word::Kind::whole:
      case Word::Kind::real: return number();
      case Word::Kind::name: return named();
      default: break;
    }
    if (skip_symbol("[")) return elements("]", at);
    if (skip_symbol("{")) return object(at);
    if (!skip_symbol("(")) unexpected("an expression");
    if (skip_symbol(")")) return make(Kind::list, at);
    ExpressionPointer first = expression();
    if (skip_symbol(")")) return first;
    expect_symbol(",");
    ExpressionPointer list = elements(")", at);
    list->operands.insert(list->operands.begin(), std::move(first));
    return list;
  }

  ExpressionPointer named() {
    const size_t at = word().at;
    const std::string name = words_[at_++].text;
    if (name == "true" || name == "True") return constant(Value::boolean(true), at);
    if (name == "false" || name == "False") return constant(Value::boolean(false), at);
    if (name == "none" || name == "None") return constant(Value(Value::Storage(None{})), at);
    if (contains(std::array<std::string_view, 8>{"and", "or", "in", "is", "if", "else", "not", "for"}, name))
      source_.fail(at, "expected an expression, not '" + name + "'");
    const bool called = is_symbol("(");
    if (called && !contains(kFunctions, name)) source_.fail(at, "the function '" + name + "' is not supported");
    ExpressionPointer made = make(called ? Kind::call : Kind::name, at);
    made->name = name;
    if (called) made->arguments = arguments();
    return made;
  }

  ExpressionPointer elements(const std::string& closing, size_t at) {
    ExpressionPointer list = make(Kind::list, at);
    while (!skip_symbol(closing)) {
      if (!list->operands.empty()) {
        expect_symbol(",");
        if (skip_symbol(closing)) break;
      }
      list->operands.push_back(expression());
    }
    return list;
  }

  ExpressionPointer object(size_t at) {
    ExpressionPointer made = make(Kind::object, at);
    while (!skip_symbol("}")) {
      if (!made->operands.empty()) {
        expect_symbol(",");
        if (skip_symbol("}")) break;
      }
      made->operands.push_back(expression());
      expect_symbol(":");
      made->operands.push_back(expression());
    }
    return made;
  }

  const Source& source_;
  const std::vector<Word>& words_;
  int& depth_;
  int limit_;
  size_t at_ = 0;
};

class TemplateParser {
 public:
  TemplateParser(const Source& source, int limit) : source_(source), pieces_(split_source(source)), limit_(limit) {}

  Statements parse() {
    std::string ending;
    Statements statements = block({}, 0, false, ending);
    return statements;
  }

 private:
  // Parses statements until a tag named in `endings`, which stays current; its name goes to `ending`.
  Statements block(std::initializer_list<std::string_view> endings, size_t opened_at, bool in_loop, std::string& ending) {
    const Deeper deeper(depth_);
    if (depth_ > limit_) source_.fail(opened_at, "more than " + std::to_string(limit_) + " nested statements");
    Statements statements;
    for (; at_ < pieces_.size(); ++at_) {
      const Piece& piece = pieces_[at_];
      if (piece.kind == Piece::Kind::text) {
        statements.push_back({.kind = Statement::Kind::text, .at = piece.at, .text = piece.text});
      } else if (piece.kind == Piece::Kind::output) {
        TagParser tag = parser(piece);
        Statement made{.kind = Statement::Kind::output, .at = piece.at};
        made.value = tag.expression();
        tag.expect_end();
        statements.push_back(std::move(made));
      } else {
        const std::string& name = piece.words.front().text;
        if (std::find(endings.begin(), endings.end(), name) != endings.end()) {
          ending = name;
          return statements;
        }
        statements.push_back(statement(piece, in_loop));
      }
    }
    if (endings.size() > 0) source_.fail(opened_at, "this tag has no '" + std::string(*(endings.end() - 1)) + "'");
    return statements;
  }

  TagParser parser(const Piece& piece) { return {source_, piece, depth_, limit_}; }

  Statement statement(const Piece& piece, bool in_loop) {
    TagParser tag = parser(piece);
    const std::string name = tag.expect_name("a statement");
    if (name == "for") return loop(tag, piece.at);
    if (name == "if") return branches(tag, piece.at, in_loop);
    if (name == "set") return set(tag, piece.at, in_loop);
    if (name == "break" || name == "continue") {
      if (!in_loop) source_.fail(piece.at, "'" + name + "' outside of a loop");
      tag.expect_end();
      return {.kind = name == "break" ? Statement::Kind::leave : Statement::Kind::next, .at = piece.at};
    }
    source_.fail(piece.at, "the tag '" + name + "' is not supported or has no opening tag");
  }

  void end_tag() {  // the current piece, which has been recognised by its name
    TagParser tag = parser(pieces_[at_]);
    tag.expect_name("a statement");
    tag.expect_end();
  }

  Statement loop(TagParser& tag, size_t at) {
    Statement made{.kind = Statement::Kind::loop, .at = at};
    do made.targets.push_back(tag.expect_name("a variable's name"));
    while (tag.skip_symbol(","));
    if (!tag.skip_name("in")) tag.unexpected("'in'");
    made.value = tag.disjunction();
    if (tag.skip_name("if")) made.filter = tag.expression();
    tag.expect_end();
    ++at_;
    std::string ending;
    made.body = block({"else", "endfor"}, at, true, ending);
    end_tag();
    if (ending == "else") {
      ++at_;
      made.otherwise = block({"endfor"}, at, false, ending);
      end_tag();
    }
    return made;
  }

  Statement branches(TagParser& first, size_t at, bool in_loop) {
    Statement made{.kind = Statement::Kind::branches, .at = at};
    made.branches.push_back({first.expression(), {}});
    first.expect_end();
    while (true) {
      ++at_;
      std::string ending;
      const bool last = made.branches.back().condition == nullptr;
      Statements body = last ? block({"endif"}, at, in_loop, ending) : block({"elif", "else", "endif"}, at, in_loop, ending);
      made.branches.back().body = std::move(body);
      if (ending != "elif") end_tag();
      if (ending == "endif") return made;
      Branch branch;
      if (ending == "elif") {
        TagParser tag = parser(pieces_[at_]);
        tag.expect_name("a statement");
        branch.condition = tag.expression();
        tag.expect_end();
      }
      made.branches.push_back(std::move(branch));
    }
  }

  Statement set(TagParser& tag, size_t at, bool in_loop) {
    Statement made{.kind = Statement::Kind::set, .at = at};
    made.targets.push_back(tag.expect_name("a variable's name"));
    if (tag.skip_symbol(".")) {
      made.attribute = tag.expect_name("an attribute's name");
    } else {
      while (tag.skip_symbol(",")) made.targets.push_back(tag.expect_name("a variable's name"));
    }
    if (tag.skip_symbol("=")) {
      made.value = tag.expression();
      if (tag.is_symbol(",")) tag.fail("write a list of values in brackets");
      tag.expect_end();
      return made;
    }
    if (made.targets.size() > 1) tag.unexpected("'='");
    tag.expect_end();
    made.kind = Statement::Kind::set_block;
    ++at_;
    std::string ending;
    made.body = block({"endset"}, at, in_loop, ending);
    end_tag();
    return made;
  }

  const Source& source_;
  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int depth_ = 0, limit_;
};

}  // namespace

Statements parse_template(const Source& source, int depth) { return TemplateParser(source, depth).parse(); }

}  // namespace based::chat_template
