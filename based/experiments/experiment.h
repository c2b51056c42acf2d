// An experiment read from its TOML file: its kind, the chosen scale, its runs and their keys.
#pragma once
#include "based/experiments/kind.h"

namespace based {

struct ExperimentFile {
  std::string path, scale;
  const ExperimentKind* kind = nullptr;
  std::unique_ptr<Experiment> experiment;
  const std::vector<PlannedRun>& runs() const { return experiment->runs(); }
};

// `scale`: "" for the file without a scale, or NAME of a table [scale.NAME], whose keys override the file's. There, `series` is a list of
// tables that override the series of the same name, and `only` lists the series to keep. `set`: KEY=VALUE, which overrides both. Throws
// UsageError.
ExperimentFile read_experiment(const std::string& path, const std::string& scale, const std::vector<std::string>& set);

// The name of a run's file: 32 hex digits, a hash of everything that determines the run's result.
std::string run_key(const ExperimentKind& kind, const PlannedRun& run, torch::DeviceType device);
std::string device_name(torch::DeviceType device);  // in keys and results: cpu, cuda

std::string point_name(const std::string& series, const std::string& label);
std::string run_name(const PlannedRun& run);  // the point's name with learning rate and seed

}  // namespace based
