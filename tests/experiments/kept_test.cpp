// The experiments of this repository: their configs give the published runs, and their stored results match the configs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "based/experiments/experiment.h"
#include "based/experiments/results.h"

namespace based {
namespace kept_test {

// `name`: a folder with a file of its name, or folder/file.
std::string experiment_file(const std::string& name) {
  const std::string file = name.substr(name.find('/') + 1);
  return std::string(BASED_SOURCE_DIR) + "/experiments/" + name.substr(0, name.find('/')) + "/" + file + ".toml";
}

// Those of folder/file are in a folder of that name.
ResultsFolder kept_results(const std::string& name) {
  return ResultsFolder(std::string(BASED_SOURCE_DIR) + "/experiments/" + name + "/results");
}

constexpr std::array kKept{"exact-recall",       "extended",       "figure1",      "figure2",         "figure3",   "index",
                           "later-mixers",       "paper-protocol", "precision",    "training-length", "ablations", "main-quality",
                           "main-quality/rates", "dna/dna-1024",   "dna/dna-4096", "dna/dna-8192"};

struct Expected {
  std::string name;
  size_t points, runs;
};

TEST(KeptExperiments, HaveThePointsThatTheyAreToHave) {
  for (const Expected& expected :
       {Expected{"exact-recall", 9, 27}, Expected{"extended", 35, 70}, Expected{"figure1", 19, 152}, Expected{"figure2", 34, 136},
        Expected{"figure3", 36, 72}, Expected{"index", 20, 20}, Expected{"later-mixers", 20, 48}, Expected{"paper-protocol", 5, 20},
        Expected{"precision", 10, 10}, Expected{"training-length", 5, 15}, Expected{"ablations", 12, 36}, Expected{"main-quality", 7, 10},
        Expected{"main-quality/rates", 7, 28}, Expected{"dna/dna-1024", 3, 12}, Expected{"dna/dna-4096", 3, 12},
        Expected{"dna/dna-8192", 3, 12}}) {
    SCOPED_TRACE(expected.name);
    const ExperimentFile file = read_experiment(experiment_file(expected.name), "", {});
    std::set<std::string> points;
    for (const PlannedRun& run : file.runs()) points.insert(point_name(run.rate->series, run.rate->label));
    EXPECT_EQ(points.size(), expected.points);
    EXPECT_EQ(file.runs().size(), expected.runs);
  }
}

// The models of a comparison have as many parameters as Based, to 2 %.
TEST(KeptExperiments, ComparedLanguageModelsAreOfOneSize) {
  for (const char* name : {"main-quality", "main-quality/rates"}) {
    SCOPED_TRACE(name);
    const ExperimentFile file = read_experiment(experiment_file(name), "", {});
    std::map<std::string, int64_t> sizes;
    for (const PlannedRun& run : file.runs()) sizes[run.rate->series] = run.rate->parameters;
    EXPECT_EQ(sizes.size(), 7U);
    for (const auto& [series, parameters] : sizes)
      EXPECT_NEAR(static_cast<double>(parameters) / static_cast<double>(sizes.at("Based")), 1, 0.02) << series << " has " << parameters;
  }
}

std::set<std::string> result_keys(const std::string& name, const std::string& scale, const std::vector<std::string>& set = {}) {
  const ExperimentFile file = read_experiment(experiment_file(name), scale, set);
  std::set<std::string> names;
  for (const PlannedRun& run : file.runs())
    for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA}) names.insert(run_key(*file.kind, run, device));
  return names;
}

// Every result in the repository belongs to a run of its experiment: keys did not change, and no result is of another config.
TEST(KeptExperiments, TheirResultsAreThoseOfTheirRuns) {
  for (const char* name : kKept) {
    std::set<std::string> planned = result_keys(name, "");
    for (const auto& [experiment, scale] : {std::pair{"figure2", "small"},
                                            {"figure2", "seeds"},
                                            {"figure3", "scout"},
                                            {"extended", "scout"},
                                            {"later-mixers", "scout"},
                                            {"precision", "seeds-fp32"},
                                            {"precision", "seeds-tf32"}})
      if (name == std::string(experiment)) planned.merge(result_keys(name, scale));
    if (name == std::string("later-mixers")) planned.merge(result_keys(name, "scout", {"training.precision=\"bf16\""}));
    for (const std::string& key : kept_results(name).keys()) EXPECT_TRUE(planned.contains(key)) << name << ": " << key;
  }
}

// The current program reads all results; no line is damaged.
TEST(KeptExperiments, TheirResultsAreWhole) {
  for (const char* name : kKept) {
    const ResultsFolder results = kept_results(name);
    const auto kept = results.keys();
    const ExperimentFile file = read_experiment(experiment_file(name), "", {});
    size_t found = 0;
    for (size_t run = 0; run < file.runs().size(); ++run)
      for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA}) {
        const bool is_kept = kept.contains(run_key(*file.kind, file.runs()[run], device));
        found += is_kept;
        EXPECT_EQ(results.read(file, run, device, false).has_value(), is_kept) << name << ": " << run_name(file.runs()[run]);
      }
    EXPECT_GT(found, 0U) << name;
  }
}

}  // namespace kept_test
}  // namespace based
