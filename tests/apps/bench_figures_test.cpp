// `based bench figures` with small sizes: every figure is measured, kept as JSON and drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace bench_figures_test {

using testing::HasSubstr;

// The series of every figure that are measured here.
const std::set<std::string> kForward{"our kernel", "PyTorch listing", "PyTorch, quadratic", "softmax attention (SDPA)"},
    kModels{"Based, our kernels", "Based, PyTorch listing", "Transformer++", "Mamba"};
const std::map<std::string, std::set<std::string>> kSeries{
    {"window_products", {"products of w queries, one head", "square products, w x w", "our window step, 16 heads"}},
    {"taylor_forward_batch", kForward},
    {"taylor_forward_length", kForward},
    {"taylor_update", {"our kernel", "our kernel, deferred", "PyTorch listing"}},
    {"window_decode", {"our kernel", "PyTorch listing", "SDPA"}},
    {"prefill_360m", kModels},
    {"generation_batch_360m", kModels},
    {"generation_length_360m", kModels},
    {"prefill_1.3b", kModels},
    {"generation_batch_1.3b", kModels},
    {"generation_length_1.3b", kModels}};

void check_points(const Json& figure, const Json& series) {
  EXPECT_GE(series["points"].size(), series["paper"].get<bool>() ? 1U : 2U);
  for (const Json& point : series["points"]) {
    EXPECT_FALSE(point.contains("missing")) << figure["name"] << " " << series["label"] << " " << point.dump();
    EXPECT_GT(point.value("value", 0.0), 0);
    EXPECT_EQ(point.value("floor", 0.0) > 0, !series["paper"].get<bool>()) << point.dump();
  }
}

void check_figure(const Json& figure) {
  const std::string name = figure["name"].get<std::string>();
  SCOPED_TRACE(name);
  const bool models = name.starts_with("prefill") || name.starts_with("generation");
  EXPECT_EQ(figure["unit"], models ? "tokens/ms" : "ms");
  std::set<std::string> measured;
  size_t of_paper = 0;
  for (const Json& series : figure["series"]) {
    check_points(figure, series);
    if (series["paper"].get<bool>())
      ++of_paper;
    else
      measured.insert(series["label"].get<std::string>());
  }
  EXPECT_EQ(measured, kSeries.at(name));
  const bool in_paper = models && !name.starts_with("generation_length");
  EXPECT_EQ(of_paper, in_paper ? 3U : 0U);
  EXPECT_EQ(figure["verdicts"].size(), in_paper ? 2U : 0U);
  for (const Json& verdict : figure["verdicts"]) {
    EXPECT_GT(verdict.value("measured", 0.0), 0) << verdict.dump();
    EXPECT_TRUE(verdict.contains("reached"));
  }
}

TEST(BenchFigures, MeasuresKeepsAndDrawsEveryFigure) {
  const TemporaryFolder folder;
  const std::string kept = folder.file("figures.json");
  const Ran ran = run("bench figures --small --threads 1 --commit abc --out " + kept + " --plot " + folder.file("pictures"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_FALSE(path_exists(kept + ".part"));
  const Json report = parse_json(read_file(kept), kept);
  EXPECT_EQ(report["commit"], "abc");
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["small"], true);
  EXPECT_FALSE(report["date"].get<std::string>().empty());
  std::set<std::string> names;
  for (const Json& figure : report["figures"]) {
    const std::string name = figure["name"].get<std::string>();
    ASSERT_TRUE(kSeries.contains(name)) << name;
    names.insert(name);
    check_figure(figure);
    EXPECT_THAT(ran.out, HasSubstr(name));
    EXPECT_THAT(read_file(folder.file("pictures") + "/" + name + ".svg"), HasSubstr("commit abc"));
  }
  EXPECT_EQ(names.size(), kSeries.size());
  EXPECT_THAT(ran.out, HasSubstr("paper's claim: small sizes, without meaning: generation of 1,024 tokens of 128 sequences at 1.3B, Based "
                                 "compared with Transformer++. Measured: "));

  // The kept file draws the same pictures without a measurement.
  const Ran again = run("bench figures --json --read " + kept + " --plot " + folder.file("again"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(parse_json(again.out, "output"), report);
  for (const std::string& name : names)
    EXPECT_EQ(read_file(folder.file("again") + "/" + name + ".svg"), read_file(folder.file("pictures") + "/" + name + ".svg"));
}

TEST(BenchFigures, JoinsTheFilesOfOneMachine) {
  const TemporaryFolder folder;
  const std::string one = folder.file("one.json"), two = folder.file("two.json"), other = folder.file("other.json");
  ASSERT_EQ(run("bench figures --threads 1 --only window_products --out " + one).code, 0);
  ASSERT_EQ(run("bench figures --threads 1 --only window_decode,taylor_update --out " + two).code, 0);
  const Ran joined = run("bench figures --json --read " + one + " --read " + two);
  ASSERT_EQ(joined.code, 0) << joined.err;
  EXPECT_EQ(parse_json(joined.out, "output")["figures"].size(), 3U);

  const Ran twice = run("bench figures --read " + one + " --read " + one);
  EXPECT_EQ(twice.code, 1);
  EXPECT_THAT(twice.err, HasSubstr("the figure 'window_products' is also in an earlier file"));
  Json changed = parse_json(read_file(two), two);
  changed["device"] = "NVIDIA H100";
  write_file_atomic(other, changed.dump());
  const Ran elsewhere = run("bench figures --read " + one + " --read " + other);
  EXPECT_EQ(elsewhere.code, 1);
  EXPECT_THAT(elsewhere.err, HasSubstr("its 'device' is \"NVIDIA H100\", but that of"));
}

TEST(BenchFigures, RefusesWrongOptions) {
  const TemporaryFolder folder;
  const std::string kept = folder.file("kept.json");
  write_file_atomic(kept, "mine");
  const auto says = [](const std::string& arguments) {
    const Ran ran = run("bench figures " + arguments);
    return std::to_string(ran.code) + " " + ran.err;
  };
  EXPECT_THAT(says("--only window_product"), HasSubstr("no figure 'window_product'; did you mean 'window_products'?"));
  EXPECT_THAT(says("--only window_products --out " + kept), HasSubstr("the file exists; --overwrite replaces it"));
  EXPECT_THAT(says("--overwrite"), HasSubstr("--overwrite goes with --plot or --out"));
  EXPECT_THAT(says("--read a.json --only window_products"), HasSubstr("leave --only out"));
  EXPECT_THAT(says("--read " + kept), HasSubstr(kept));
  EXPECT_EQ(read_file(kept), "mine");
}

}  // namespace bench_figures_test
}  // namespace based
