// Classification runs: a motif that is learned, resuming, a pretrained start, sequences of different lengths, and wrong keys.
#include "based/train/classification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <filesystem>
#include <fstream>

#include "based/core/files.h"
#include "based/data/dna.h"
#include "based/models/weights.h"
#include "based/train/classification_data.h"
#include "tests/core/temporary_folder.h"
#include "tests/train/small_run.h"

namespace based {
namespace classification_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Class "yes" is rich in A and class "no" in T, so that the mean of embeddings nearly separates them. Lengths differ.
std::string write_set(const TemporaryFolder& folder, const std::string& name, int first, int count, int lengths = 5) {
  std::ofstream file(folder.file(name));
  file << "sequence,label\n";
  for (int i = first; i < first + count; ++i) {
    for (int j = 0; j < 10 + i % lengths; ++j) file << ((i + j) % 4 == 0 ? "CG"[j % 2] : "AT"[i % 2]);
    file << (i % 2 == 0 ? ",yes\n" : ",no\n");
  }
  return folder.file(name);
}

ClassificationRun small_classification(const TemporaryFolder& folder) {
  ClassificationRun run;
  run.model = Config::parse_toml(
      "d_model = 16\nlayers = [\"gated_conv\", \"w\"]\nmlp_width = 16\n[mixers.w]\ntype = \"sliding_window\"\nheads = 2\nwindow = 4\n",
      "test");
  run.classification.train = write_set(folder, "train.csv", 0, 48);
  run.classification.dev = write_set(folder, "dev.csv", 100, 16);
  run.classification.test = write_set(folder, "test.csv", 200, 20);
  run.optimizer.learning_rate = 1e-2;
  run.train.epochs = 4;
  run.train.batch = 8;
  return run;
}

TEST(Classification, LearnsAndKeepsTheModelThatDevChooses) {
  const TemporaryFolder folder;
  const ClassificationResult result = run_classification(small_classification(folder), folder.file("out"));
  EXPECT_EQ(result.failure, "");
  EXPECT_THAT(result.classes, ElementsAre("no", "yes"));
  EXPECT_EQ(result.loop.state.step, 24);
  ASSERT_TRUE(result.dev && result.test);
  EXPECT_EQ(result.test->confusion.cases(), 20);
  EXPECT_GT(result.test->confusion.accuracy(), 0.9);
  EXPECT_EQ(result.loop.state.best_loss, result.dev->confusion.mcc()) << "the kept model is the one that was chosen";
  const auto loaded = load_classifier(folder.file("out"));
  EXPECT_THAT(loaded->head().classes, ElementsAre("no", "yes"));
  const ClassificationConfig config = small_classification(folder).classification;
  const ClassificationData data = load_classification_data(config, std::make_shared<DnaTokenizer>(), 0, 0);
  EXPECT_EQ(measure_classes(*loaded, *data.test).loss, result.test->loss);
  EXPECT_EQ(make_tokenizer(folder.file("out"))->hash(), dna_tokenizer_hash());
  EXPECT_THAT(read_file(folder.file("out/result.json")), AllOf(HasSubstr("\"mcc\""), HasSubstr("\"device\": \"cpu\"")));
}

TEST(Classification, AResumedRunIsTheUninterruptedOne) {
  const TemporaryFolder folder;
  ClassificationRun run = small_classification(folder);
  run.checkpoint.every = 5;
  run.checkpoint.keep = 10;
  run.classification.reverse_complement = 0.5;
  run.classification.pooling = "last";
  run_classification(run, folder.file("whole"));
  run_classification(run, folder.file("cut"));
  take_back_to(folder.file("cut"), 10);
  const ClassificationResult resumed = run_classification(run, folder.file("cut"), {.resume = true});
  EXPECT_GE(resumed.resumed_from, 5);
  EXPECT_LE(resumed.resumed_from, 10);
  for (const char* name : {"model.safetensors", "metrics.jsonl", "result.json"})
    EXPECT_TRUE(read_file(folder.file("whole/") + name) == read_file(folder.file("cut/") + name)) << name;
  run.train.seed = 1;
  EXPECT_THAT(message_of<UsageError>([&] { run_classification(run, folder.file("cut"), {.resume = true}); }),
              HasSubstr("--resume: train.seed is 1"));
}

class RecordedClassification : public ::testing::TestWithParam<const char*> {};

// The files of a run without a graph, and of one that is resumed with it.
TEST_P(RecordedClassification, TrainsAsOthersDo) {
  if (std::string(GetParam()) == "cuda" && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TemporaryFolder folder;
  ClassificationRun run = small_classification(folder);
  run.classification.train = write_set(folder, "train.csv", 0, 50, /*lengths=*/1);
  run.classification.reverse_complement = 0.5;
  run.train.device = GetParam();
  run.train.precision = "bf16";
  run.train.log_every = 1;
  run.checkpoint.every = 5;
  run.checkpoint.keep = 10;
  run_classification(run, folder.file("plain"));
  run_classification(run, folder.file("resumed"));
  take_back_to(folder.file("resumed"), 10);
  run.train.graph = true;
  run_classification(run, folder.file("graph"));
  run_classification(run, folder.file("resumed"), {.resume = true});
  for (const char* name : {"metrics.jsonl", "model.safetensors", "result.json"})
    for (const char* other : {"graph/", "resumed/"})
      EXPECT_TRUE(read_file(folder.file("plain/") + name) == read_file(folder.file(other) + name)) << other << name;
}

INSTANTIATE_TEST_SUITE_P(Devices, RecordedClassification, ::testing::Values("cpu", "cuda"),
                         [](const auto& device) { return device.param; });

TEST(Classification, StartsFromAPretrainedModel) {
  const TemporaryFolder folder;
  ClassificationRun run = small_classification(folder);
  ModelConfig config = read_model_config(run.model);
  config.vocab_size = DnaTokenizer().vocab_size();
  const auto pretrained = make_model(config, 7);
  DnaTokenizer().save(folder.file("pretrained"));
  save_model(*pretrained, folder.file("pretrained"), dna_tokenizer_hash());
  const auto classifier = make_classifier(config, {{"no", "yes"}, "mean"}, 0);
  copy_body(*pretrained, *classifier);
  const auto weights = pretrained->named_parameters();
  int64_t heads = 0;
  for (const auto& item : classifier->named_parameters()) {
    if (const Tensor* found = weights.find(item.key()))
      EXPECT_TRUE(torch::equal(item.value(), *found)) << item.key();
    else
      ++heads;
  }
  EXPECT_EQ(heads, 2);
  run.classification.pretrained = folder.file("pretrained");
  const Config model = run.model;
  run.model.set("mlp_width", Config(int64_t{24}));
  EXPECT_THAT(message_of<UsageError>([&] { run_classification(run, folder.file("out")); }), HasSubstr("is not the model of"));
  run.model = model;
  run.train.epochs = 1;
  run.optimizer.learning_rate = run.optimizer.min_learning_rate = 1e-12;
  run_classification(run, folder.file("out"));
  const auto trained = load_classifier(folder.file("out"))->named_parameters();
  for (const auto& item : weights) EXPECT_TRUE(torch::allclose(trained[item.key()], item.value(), 0, 1e-6)) << item.key();
}

// The same sequences in a batch of all, or alone, give the same logits: no sequence reads another, and none is padded.
TEST(Classification, PackedSequencesDoNotReadOneAnother) {
  const TemporaryFolder folder;
  const ClassificationRun run = small_classification(folder);
  const ClassificationData data = load_classification_data(run.classification, std::make_shared<DnaTokenizer>(), 0, 0);
  ModelConfig config = read_model_config(run.model);
  config.vocab_size = data.tokenizer->vocab_size();
  const torch::NoGradGuard no_grad;
  for (const char* pooling : {"mean", "last"}) {
    const auto classifier = make_classifier(config, {data.classes, pooling}, 3);
    classifier->eval();
    const Batch all = class_batch(*data.dev, {0, 1, 2, 3}, {}, torch::kCPU);
    EXPECT_FALSE(all.rows.equal_length());
    const Tensor together = classifier->class_logits(all.ids, all.rows);
    for (int64_t i = 0; i < 4; ++i) {
      const Batch one = class_batch(*data.dev, {i}, {}, torch::kCPU);
      EXPECT_TRUE(torch::allclose(together[i], classifier->class_logits(one.ids, one.rows)[0], 1e-5, 1e-6)) << pooling << " " << i;
    }
  }
}

TEST(Classification, BatchesDependOnTheSeedTheSequenceAndTheEpoch) {
  const TemporaryFolder folder;
  const ClassificationRun run = small_classification(folder);
  const ClassificationData data = load_classification_data(run.classification, std::make_shared<DnaTokenizer>(), 0, 0);
  const auto ids_of = [&](int64_t batch, int64_t steps) {
    const ClassBatches batches(*data.train, {.batch = batch, .seed = 5, .reverse_complement = 0.5}, torch::kCPU);
    std::vector<Tensor> ids;
    for (int64_t step = 0; step < steps; ++step) ids.push_back(batches.at(step).ids);
    return torch::cat(ids);
  };
  EXPECT_TRUE(torch::equal(ids_of(4, 24), ids_of(8, 12))) << "two epochs";
  EXPECT_FALSE(torch::equal(ids_of(48, 1), ids_of(48, 2).slice(0, ids_of(48, 1).size(0)))) << "another order in the second epoch";
}

TEST(Classification, ADevShareIsDrawnFromTrain) {
  const TemporaryFolder folder;
  ClassificationConfig config = small_classification(folder).classification;
  config.dev = "";
  config.dev_fraction = 0.25;
  const auto tokenizer = std::make_shared<DnaTokenizer>();
  const ClassificationData one = load_classification_data(config, tokenizer, 1, 0), two = load_classification_data(config, tokenizer, 2, 0);
  EXPECT_EQ(one.dev->size(), 12);
  EXPECT_EQ(one.train->size(), 36);
  EXPECT_NE(one.dev->hash(), two.dev->hash());
}

TEST(Classification, RefusesWrongKeysBeforeItWritesAnything) {
  const TemporaryFolder folder;
  const auto refusal = [&](const auto& change) {
    ClassificationRun run = small_classification(folder);
    change(run);
    return message_of<Error>([&] { run_classification(run, folder.file("out")); });
  };
  EXPECT_THAT(refusal([](auto& run) { run.classification.train = ""; }), HasSubstr("classification.train"));
  EXPECT_THAT(refusal([](auto& run) { run.classification.train = "/nowhere.csv"; }), HasSubstr("/nowhere.csv"));
  EXPECT_THAT(refusal([](auto& run) { run.classification.pooling = "first"; }), HasSubstr("classification.pooling must be mean or last"));
  EXPECT_THAT(refusal([](auto& run) { run.classification.select = "auc"; }), HasSubstr("classification.select must be"));
  EXPECT_THAT(refusal([](auto& run) { run.classification.reverse_complement = 2; }), HasSubstr("a chance from 0 to 1"));
  EXPECT_THAT(refusal([](auto& run) {
                run.classification.tokenizer = "bytes";
                run.classification.reverse_complement = 0.5;
              }),
              HasSubstr("needs the tokenizer dna"));
  EXPECT_THAT(refusal([](auto& run) { run.train.epochs = 0; }), HasSubstr("train.epochs"));
  EXPECT_THAT(refusal([](auto& run) { run.train.graph = true; }),
              AllOf(HasSubstr("train.graph needs training sequences of one length"), HasSubstr("have 10 to 14 tokens")));
  EXPECT_THAT(refusal([](auto& run) { run.model.set("max_positions", Config(int64_t{12})); }), HasSubstr("the model at most 12"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("out")));
}

TEST(Classification, ADamagedFolderIsNamed) {
  const TemporaryFolder folder;
  ModelConfig config = read_model_config(small_classification(folder).model);
  config.vocab_size = 12;
  const auto classifier = make_classifier(config, {{"no", "yes"}, "mean"}, 0);
  save_classifier(*classifier, folder.file("a"), DnaTokenizer());
  EXPECT_TRUE(
      torch::equal(load_classifier(folder.file("a"))->named_parameters()["head_weight"], classifier->named_parameters()["head_weight"]));
  write_classes({{"a", "b", "c"}, "mean"}, folder.file("a"));
  EXPECT_THAT(message_of<Error>([&] { load_classifier(folder.file("a")); }), HasSubstr("tensor 'head_weight' has the shape [2, 16]"));
  write_file_atomic(folder.file("a/classes.json"), "{\"classes\": [\"a\"]}");
  EXPECT_THAT(message_of<Error>([&] { load_classifier(folder.file("a")); }), HasSubstr("classes.json: classes: must name at least two"));
  EXPECT_THAT(message_of<Error>([&] { load_model(folder.file("a")); }), HasSubstr("head_weight"));
}

}  // namespace classification_test
}  // namespace based
