// An experiment as its TOML file describes it: what kind it is, which of its scales is wanted, the runs, and their keys.
#pragma once
#include "based/experiments/kind.h"

namespace based {

struct ExperimentFile {
  std::string path, scale;
  const ExperimentKind* kind = nullptr;
  std::unique_ptr<Experiment> experiment;
  const std::vector<PlannedRun>& runs() const { return experiment->runs(); }
};

// `scale`: "" for the file as it is, or NAME of a table [scale.NAME], whose keys are laid over it. There `series` is a list of tables, laid
// over those of the same name, and `only` a list of the series that are kept. `set`: KEY=VALUE, laid over that. Throws UsageError.
ExperimentFile read_experiment(const std::string& path, const std::string& scale, const std::vector<std::string>& set);

// The name of a run's file: 32 hex digits over all that decides it.
std::string run_key(const ExperimentKind& kind, const PlannedRun& run, torch::DeviceType device);
std::string device_name(torch::DeviceType device);  // as keys and results have it: cpu, cuda

std::string point_name(const std::string& series, const std::string& label);
std::string run_name(const PlannedRun& run);  // with rate and seed

// A name as text of a Markdown document, in a cell of a table too: what Markdown would read as its own is escaped.
std::string markdown(const std::string& text);

}  // namespace based
