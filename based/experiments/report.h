// What an experiment has come to, from its config and the kept files alone.
#pragma once
#include "based/experiments/experiment.h"
#include "based/experiments/results.h"

namespace based {

struct Report {
  std::vector<std::unique_ptr<StoredRun>>
      runs;                         // in the plan's order, null where nothing is kept; of a GPU where there is one, else of the CPU
  std::vector<PointResult> points;  // in the plan's order; they point into `runs`
};
Report make_report(const ExperimentFile& file, const ResultsFolder& results);

// {"points": [{…}]}, one a run with an outcome.
std::string report_json(const ExperimentFile& file, const Report& report);
// A table of the points, what is missing and what failed; lines.
std::vector<std::string> report_lines(const ExperimentFile& file, const Report& report);

}  // namespace based
