// A statement of the paper's appendix is one file, based/theory/statements/<name>.cpp, and one line in statements.def. It says what is
// claimed, tries it, and may have a program to draw. Trying counts what was built and what was put in: nothing of a result is asserted.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "based/core/random.h"
#include "based/theory/base_conv.h"

namespace based::theory {

// What the paper prints and what is wrong with it: an input on which it fails, as it came out, and what holds instead.
struct Correction {
  std::string printed, shown, repair;
};

struct Result {
  std::string sizes;  // that were tried
  int64_t inputs = 0;
  std::optional<int64_t> least_layers, most_layers;  // of the programs built
  std::string claimed_layers;
  std::vector<Correction> corrections;
  std::vector<std::string> notes, failures;

  bool holds() const { return failures.empty(); }
  std::string verdict() const;  // "holds", "holds as repaired" or "FAILS"
};

// What a statement reports to while it is tried.
class Trial {
 public:
  // `counted` is called with the inputs so far, often; it may throw to end the trial.
  // `quick`: a share of the random inputs, for tests.
  explicit Trial(std::function<void(int64_t)> counted = {}, bool quick = false) : counted_(std::move(counted)), quick_(quick) {}
  bool quick() const { return quick_; }

  void size(const std::string& text);
  void count(int64_t inputs = 1);
  void layers(int64_t built, const std::string& claimed);  // claimed in words
  void layers(int64_t built, int64_t claimed);             // fails where more were built
  bool require(bool holds, const std::string& failure);    // returns `holds`
  void correct(const Correction& correction, bool shown);  // fails unless the counterexample is one
  void note(const std::string& text) { result_.notes.push_back(text); }
  // Runs `program` and compares the top left of what comes out. `sized` names the case in a failure.
  bool compare(const Program& program, const IntMatrix& input, const IntMatrix& expected, const std::string& sized);
  const Result& result() const { return result_; }

 private:
  std::function<void(int64_t)> counted_;
  bool quick_;
  Result result_;
};

// A program on a small input, to be drawn layer by layer.
struct Example {
  Program program;
  IntMatrix input;
  std::string about;
};

// What there is before the first layer, or behind a layer.
struct Frame {
  std::string what;
  IntMatrix matrix;
};

// A construction that is no program of such layers, as it is drawn.
struct Drawing {
  std::string about;
  std::vector<Frame> frames;  // the input, then one a layer
};

struct Statement {
  const char* name;
  const char* place;  // in the paper
  const char* claim;
  int64_t inputs;  // that `verify` counts in all, for those who watch; `based theory verify` compares
  void (*verify)(Trial& trial);
  Example (*example)() = nullptr;
  Drawing (*drawing)() = nullptr;  // where there is no example; both null: there is nothing to draw
  bool can_be_drawn() const { return example != nullptr || drawing != nullptr; }
};

const std::vector<const Statement*>& statements();
void add_statements(const std::vector<const Statement*>& more);  // of other layers; before other threads ask. Those there are stay once
const Statement& find_statement(const std::string& name);        // throws UsageError that names the nearest

IntMatrix random_matrix(Random& random, Size size, int64_t low, int64_t high);
std::string row_text(const IntMatrix& matrix, int64_t row);  // "(1, 0, 2)"

}  // namespace based::theory
