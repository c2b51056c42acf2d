// Each statement of the paper's appendix is one file, theory/statements/<name>.cpp, and one line in statements.def. It states a claim,
// verifies it by trials, and may have a program to draw. The reported numbers of layers and inputs are counted during the trials.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "based/core/random.h"
#include "theory/base_conv.h"

namespace based::theory {

// A correction of the paper: the printed form, a counterexample with its wrong result, and the form that holds.
struct Correction {
  std::string printed, shown, repair;
};

struct Result {
  std::string sizes;  // the sizes that were tried
  int64_t inputs = 0;
  std::optional<int64_t> least_layers, most_layers;  // over all programs that were built
  std::string claimed_layers;
  std::vector<Correction> corrections;
  std::vector<std::string> notes, failures;

  bool holds() const { return failures.empty(); }
  std::string verdict() const;  // "holds", "holds as repaired" or "FAILS"
};

// Collects the results of a statement's trials.
class Trial {
 public:
  // `counted` is called often, with the number of inputs so far. It may throw to end the trial. `quick` reduces the number of random
  // inputs, for tests.
  explicit Trial(std::function<void(int64_t)> counted = {}, bool quick = false) : counted_(std::move(counted)), quick_(quick) {}
  bool quick() const { return quick_; }

  void size(const std::string& text);
  void count(int64_t inputs = 1);
  void layers(int64_t built, const std::string& claimed);  // the claim in words
  void layers(int64_t built, int64_t claimed);             // fails if built > claimed
  bool require(bool holds, const std::string& failure);    // returns `holds`
  void correct(const Correction& correction, bool shown);  // fails unless `shown`: the counterexample must be one
  void note(const std::string& text) { result_.notes.push_back(text); }
  // Runs `program` and compares the top left of its output. `sized` names the case in failures.
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

// The matrix before the first layer or after a layer.
struct Frame {
  std::string what;
  IntMatrix matrix;
};

// A drawing of a construction that is not a program of BaseConv layers.
struct Drawing {
  std::string about;
  std::vector<Frame> frames;  // the input, then one per layer
};

struct Statement {
  const char* name;
  const char* place;  // in the paper
  const char* claim;
  int64_t inputs;  // the total that `verify` counts, for the progress line; `based theory verify` checks it
  void (*verify)(Trial& trial);
  Example (*example)() = nullptr;
  Drawing (*drawing)() = nullptr;  // used if there is no example; both may be null
  bool can_be_drawn() const { return example != nullptr || drawing != nullptr; }
};

const std::vector<const Statement*>& statements();
const Statement& find_statement(const std::vector<const Statement*>& among,
                                const std::string& name);  // throws UsageError that suggests the nearest

IntMatrix random_matrix(Random& random, Size size, int64_t low, int64_t high);
std::string row_text(const IntMatrix& matrix, int64_t row);  // "(1, 0, 2)"

}  // namespace based::theory
