// The loss curves of runs of `based train`, read from the metrics files in their folders (train/metrics.h).
#pragma once
#include <string>
#include <vector>

#include "based/experiments/kind.h"
#include "based/experiments/loss_curve.h"

namespace based {

// The losses in a metrics.jsonl.
struct LoggedLosses {
  LossCurve train, held_out;  // without losses that are not finite
  std::string order_hash;     // the last one, and its step
  int64_t order_step = 0;
};

enum class LastLine { whole, may_be_torn };  // may_be_torn: without a line break it is skipped, as a running or killed process leaves it

// Throws Error, naming the file and the line, for damage.
LoggedLosses read_losses(const std::string& file, LastLine last);

struct RunCurves {
  struct Resumption {
    int64_t step = 0;       // the first logged step after it
    bool repeated = false;  // steps that had been logged were executed again: the run ended without a save
    int64_t devices = 0;    // 0: timing.jsonl does not say
  };
  std::string name;        // the folder's
  double step_tokens = 0;  // tokens of a step
  LossCurve train, held_out;
  // Where timing.jsonl shows that another process continued: steps are repeated, its seconds begin anew, or the number of devices changes.
  std::vector<Resumption> resumptions;
};

// Reads run.json, metrics.jsonl and, if there is one, timing.jsonl. A last line without a line break, which a running or killed process may
// leave, is skipped. Throws Error, naming the file and the line, for other damage and for a folder without these files.
RunCurves read_run_curves(const std::string& folder);

// "training-loss" and, if any run has evaluations, "held-out-loss", against training tokens, with the resumptions marked.
std::vector<Figure> curve_figures(const std::vector<RunCurves>& runs, const std::string& title);

}  // namespace based
