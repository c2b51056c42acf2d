// The results of an experiment, read from its config and the stored runs.
#pragma once
#include "based/experiments/experiment.h"
#include "based/experiments/results.h"

namespace based {

struct Report {
  std::vector<std::unique_ptr<StoredRun>>
      runs;                         // in the plan's order; null if there is no stored result; a GPU's result takes precedence over a CPU's
  std::vector<PointResult> points;  // in the plan's order; they point into `runs`
};
Report make_report(const ExperimentFile& file, const ResultsFolder& results);

// {"points": [{…}]}, one element for each run with an outcome.
std::string report_json(const ExperimentFile& file, const Report& report);
// The lines of a table of the points, of failed runs, and of the number of missing runs.
std::vector<std::string> report_lines(const ExperimentFile& file, const Report& report);

}  // namespace based
