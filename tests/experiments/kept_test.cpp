// The experiments of this repository: their files say what they did, and what is kept belongs to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "based/experiments/experiment.h"
#include "based/experiments/results.h"

namespace based {
namespace {

std::string experiment_file(const std::string& name) {
  return std::string(BASED_SOURCE_DIR) + "/experiments/" + name + "/" + name + ".toml";
}

struct Expected {
  std::string name;
  size_t points, runs;
};

TEST(KeptExperiments, HaveThePointsThatTheyAreToHave) {
  for (const Expected& of :
       {Expected{"exact-recall", 9, 27}, Expected{"extended", 35, 70}, Expected{"figure1", 19, 152}, Expected{"figure2", 34, 136},
        Expected{"figure3", 36, 72}, Expected{"index", 20, 20}, Expected{"later-mixers", 20, 48}, Expected{"paper-protocol", 5, 20},
        Expected{"precision", 10, 10}, Expected{"training-length", 5, 15}}) {
    SCOPED_TRACE(of.name);
    const ExperimentFile file = read_experiment(experiment_file(of.name), "", {});
    std::set<std::string> points;
    for (const PlannedRun& run : file.runs()) points.insert(point_name(run.rate->series, run.rate->label));
    EXPECT_EQ(points.size(), of.points);
    EXPECT_EQ(file.runs().size(), of.runs);
  }
}

std::set<std::string> result_names(const std::string& name, const std::string& scale, const std::vector<std::string>& set = {}) {
  const ExperimentFile file = read_experiment(experiment_file(name), scale, set);
  std::set<std::string> names;
  for (const PlannedRun& run : file.runs())
    for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA}) names.insert(run_key(*file.kind, run, device) + ".json");
  return names;
}

// What stays in the repository is found again by the program of today: keys did not change, and nothing is left over from another config.
TEST(KeptExperiments, TheirResultsAreThoseOfTheirRuns) {
  for (const char* name : {"exact-recall", "extended", "figure1", "figure2", "figure3", "index", "later-mixers", "paper-protocol",
                           "precision", "training-length"}) {
    const std::filesystem::path folder = std::filesystem::path(experiment_file(name)).parent_path() / "results";
    if (!std::filesystem::exists(folder)) continue;
    std::set<std::string> names = result_names(name, "");
    for (const auto& [experiment, scale] : {std::pair{"figure2", "small"},
                                            {"figure2", "seeds"},
                                            {"figure3", "scout"},
                                            {"extended", "scout"},
                                            {"later-mixers", "scout"},
                                            {"precision", "seeds-fp32"},
                                            {"precision", "seeds-tf32"}})
      if (name == std::string(experiment)) names.merge(result_names(name, scale));
    if (name == std::string("later-mixers")) names.merge(result_names(name, "scout", {"training.precision=\"bf16\""}));
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string file = entry.path().filename().string();
      EXPECT_TRUE(entry.path().extension() != ".json" || names.contains(file)) << name << "/results/" << file;
    }
  }
}

// And the program of today takes their figures: none is set aside as damaged.
TEST(KeptExperiments, TheirResultsAreWhole) {
  for (const char* name : {"exact-recall", "extended", "figure1", "figure2", "figure3", "index", "later-mixers", "paper-protocol",
                           "precision", "training-length"}) {
    const std::filesystem::path folder = std::filesystem::path(experiment_file(name)).parent_path() / "results";
    if (!std::filesystem::exists(folder)) continue;
    const ResultsFolder results(folder.string());
    const auto kept = results.keys();
    const ExperimentFile file = read_experiment(experiment_file(name), "", {});
    size_t found = 0;
    for (size_t run = 0; run < file.runs().size(); ++run)
      for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA}) {
        const bool has_file = kept.contains(run_key(*file.kind, file.runs()[run], device));
        found += has_file;
        EXPECT_EQ(results.read(file, run, device, false).has_value(), has_file) << name << ": " << run_name(file.runs()[run]);
      }
    EXPECT_GT(found, 0U) << name;
  }
}

}  // namespace
}  // namespace based
