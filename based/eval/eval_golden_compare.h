// The comparison of results with those of a golden file.
#pragma once
#include <string>

#include "based/core/json.h"

namespace based {

class EvalComparison {
 public:
  // Records the relative difference of numbers. Other values, and the keys of objects, must be equal. `where` names the value, for worst().
  void same(const Json& actual, const Json& expected, const std::string& where);
  // The same for an object that may lack its long members: "text", "ids" and "target".
  void same_request(const Json& actual, const Json& expected, const std::string& where);
  void fail(const std::string& what);  // something that is no number differs

  double error() const { return error_; }
  const std::string& worst() const { return worst_; }

 private:
  void compare(const Json& actual, const Json& expected, const std::string& where, bool may_lack_texts);
  void number(double actual, double expected, const std::string& where);

  double error_ = 0;
  std::string worst_;
};

// Compares the functions that `cases` names, an object of lists; `path` is the file's. Needs a tokenizer for some of them.
class Tokenizer;
void compare_eval_cases(const Json& cases, const Tokenizer& tokenizer, const std::string& path, EvalComparison& comparison);
// Whether there is a function of this name.
bool is_eval_case(const std::string& name);

}  // namespace based
