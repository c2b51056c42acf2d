// `based convert --weights`: quantises a model's folder and compares the result with the full model.
#pragma once
#include <string>

#include "apps/command_line.h"
#include "based/experiments/recall_run.h"

namespace based::apps {

struct QuantiseOptions {
  std::string form, gate_text;  // form: int8, int4, or empty for none
  RecallSegment segment;        // the examples of --gate-mqar
  bool gate_mqar = false, no_gate = false;
};
void add_quantise_options(CommandLine app, QuantiseOptions& options);
// Throws UsageError unless the options fit each other.
void check_quantise_options(const QuantiseOptions& options);

// Whether the folder is a model's folder of this library, not one as published.
bool is_own_model(const std::string& folder);

// Writes the quantised model of `source` and its tokenizer to `out`, prints sizes and the gate's results, and throws Error if the model
// does not pass the gate.
void quantise_folder(const std::string& source, const std::string& out, const QuantiseOptions& options);

}  // namespace based::apps
