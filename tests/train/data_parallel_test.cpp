// Training steps that several ranks share: threads of this process, each with its own model.
#include <gtest/gtest.h>

#include <limits>

#include "based/train/step.h"
#include "tests/train/rank_threads.h"

namespace based {
namespace data_parallel_test {

constexpr int64_t kRows = 12, kLength = 16, kBucketBytes = 8 << 10;  // small buckets, which divide the model in about a dozen
// Labels of each row; the first tokens have them. The last rows of the last rank have none if a batch is one row.
constexpr int64_t kLabels[kRows] = {16, 5, 10, 15, 3, 8, 13, 1, 6, 11, 0, 0};

void on_ranks(int64_t world, const std::function<void(const std::shared_ptr<Collectives>& ranks)>& body) {
  rethrow_first(on_rank_threads(world, body));
}

// Rows first … first + count − 1 of a step's batch.
Batch rows_of_step(int64_t step, int64_t first, int64_t count) {
  int64_t labelled = 0, step_labels = 0;
  std::vector<Tensor> ids, labels;
  for (int64_t row = 0; row < kRows; ++row) {
    step_labels += kLabels[row];
    if (row < first || row >= first + count) continue;
    labelled += kLabels[row];
    ids.push_back((torch::arange(kLength) * 5 + 7 * row + 31 * step) % 251);
    labels.push_back(((ids.back() + 1) % 251).masked_fill(torch::arange(kLength) >= kLabels[row], -100));
  }
  Batch batch{torch::cat(ids), torch::cat(labels), Sequences::equal(count, kLength), {}, labelled};
  batch.step_labels = step_labels, batch.first_token = first * kLength;
  return batch;
}

struct Job {
  int64_t world = 1, parts = 1;  // parts: batches of each rank in a step
  bool shard = false;
  torch::Dtype dtype = torch::kDouble;
  double clip = 1, dropout = 0;
  bool checkpoint_activations = false, recorded = false;
  int64_t first_step = 0, steps = 10;
};

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<Tensor> weights;
  std::vector<SavedSlot> state;
};

ModelConfig small_model(double dropout) {
  ModelConfig config = find_preset("based-tiny");
  config.embedding_dropout = dropout;
  return config;
}

Outcome train_rank(const Job& job, const std::shared_ptr<Collectives>& ranks, const Outcome& start) {
  const auto model = make_model(small_model(job.dropout), 1);
  model->to(job.dtype);
  model->train();
  model->set_checkpoint_activations(job.checkpoint_activations);
  OptimizerOptions options;
  options.clip = job.clip;
  AdamW optimizer(*model, options, ranks, job.shard, kBucketBytes);
  if (!start.state.empty()) {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> weights = model->parameters();
    for (size_t i = 0; i < weights.size(); ++i) weights[i].copy_(start.weights[i]);
    optimizer.load_state(start.state);
  }
  TrainStep step(*model, optimizer, {.recordings = job.recorded ? 1 : 0, .seed = 9, .ranks = ranks});
  Outcome outcome;
  const int64_t rows = kRows / (job.world * job.parts);
  for (int64_t at = job.first_step; at < job.first_step + job.steps; ++at) {
    std::vector<Batch> batches;
    for (int64_t part = 0; part < job.parts; ++part) batches.push_back(rows_of_step(at, (ranks->rank() * job.parts + part) * rows, rows));
    const Tensor loss_and_norm = step.run(batches, at, 1e-3, /*look=*/true);
    outcome.losses.push_back(loss_and_norm[0].item<double>());
    outcome.norms.push_back(loss_and_norm[1].item<double>());
  }
  for (const Tensor& parameter : model->parameters()) outcome.weights.push_back(parameter.detach().clone());
  outcome.state = optimizer.gather_state();
  return outcome;
}

// The outcome of rank 0. The others must have the same figures and weights, bit for bit.
Outcome train(const Job& job, const Outcome& start = {}) {
  std::vector<Outcome> outcomes(static_cast<size_t>(job.world));
  on_ranks(job.world, [&](const std::shared_ptr<Collectives>& ranks) {
    outcomes[static_cast<size_t>(ranks->rank())] = train_rank(job, ranks, start);
  });
  for (const Outcome& other : outcomes) {
    EXPECT_EQ(other.losses, outcomes[0].losses);
    EXPECT_EQ(other.norms, outcomes[0].norms);
    for (size_t i = 0; i < other.weights.size(); ++i) EXPECT_TRUE(torch::equal(other.weights[i], outcomes[0].weights[i])) << i;
    EXPECT_EQ(other.state.empty(), &other != &outcomes[0]);
  }
  return outcomes[0];
}

double distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

std::vector<Tensor> first_moments(const Outcome& outcome) {
  std::vector<Tensor> moments;
  for (const SavedSlot& slot : outcome.state) moments.push_back(slot.first_moment);
  return moments;
}

std::vector<Tensor> tensors_of_state(const Outcome& outcome) {
  std::vector<Tensor> tensors;
  for (const SavedSlot& slot : outcome.state) {
    tensors.insert(tensors.end(), {slot.first_moment, slot.second_moment, slot.steps});
    if (slot.master.defined()) tensors.push_back(slot.master);
  }
  return tensors;
}

// Without clipping, the first moment of the first step is 1 − beta1 times the gradient.
TEST(DataParallel, GradientOfUnequalPartsEqualsThatOfOneBatch) {
  const Outcome whole = train({.clip = 0, .steps = 1});
  double largest = 0;
  for (const Tensor& moment : first_moments(whole)) largest = std::max(largest, moment.abs().max().item<double>());
  for (const Job& job : {Job{.world = 2, .parts = 2}, Job{.world = 2, .parts = 2, .shard = true}, Job{.world = 4, .parts = 3},
                         Job{.world = 3, .shard = true}, Job{.world = 2, .parts = 2, .checkpoint_activations = true}}) {
    Job one = job;
    one.clip = 0, one.steps = 1;
    const Outcome parts = train(one);
    EXPECT_NEAR(parts.losses[0], whole.losses[0], 1e-6);
    EXPECT_LT(distance(first_moments(parts), first_moments(whole)), 1e-6 * largest) << job.world << ' ' << job.parts;
  }
}

TEST(DataParallel, FiguresDoNotDependOnTheNumberOfRanks) {
  const Outcome alone = train({.dtype = torch::kFloat});
  for (const int64_t world : {2, 3})
    for (const bool shard : {false, true}) {
      const Outcome shared = train({.world = world, .shard = shard, .dtype = torch::kFloat});
      for (size_t i = 0; i < alone.norms.size(); ++i) {
        EXPECT_NEAR(shared.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << world << shard << ' ' << i;
        EXPECT_NEAR(shared.norms[i], alone.norms[i], 1e-5 * alone.norms[i]) << world << shard << ' ' << i;
      }
    }
}

// Dropout draws by a token's index in the step, so that it does not depend on the ranks and parts either.
TEST(DataParallel, WeightsAndStateDoNotDependOnTheNumberOfRanks) {
  const Outcome alone = train({.dropout = 0.3});
  EXPECT_GT(distance(alone.weights, train({.dropout = 0.1}).weights), 1e-4);
  for (const Job& job : {Job{.world = 2}, Job{.world = 4, .shard = true}, Job{.world = 2, .parts = 3, .shard = true}, Job{.parts = 2}}) {
    Job dropping = job;
    dropping.dropout = 0.3;
    const Outcome shared = train(dropping);
    EXPECT_LT(distance(shared.weights, alone.weights), 1e-7) << job.world << ' ' << job.parts;
    EXPECT_LT(distance(tensors_of_state(shared), tensors_of_state(alone)), 1e-7) << job.world << ' ' << job.parts;
  }
}

// Nearly: the optimizer's vector code may round the last elements of a shard in another way. Recording changes no bit.
TEST(DataParallel, ShardsAndRecordingsChangeNothing) {
  for (const torch::Dtype dtype : {torch::kBFloat16, torch::kFloat})
    for (const int64_t parts : {1, 2}) {
      const Outcome whole = train({.world = 2, .parts = parts, .dtype = dtype, .clip = 0, .steps = 3});
      Job job{.world = 2, .parts = parts, .shard = true, .dtype = dtype, .clip = 0, .steps = 3};
      const Outcome sharded = train(job);
      EXPECT_LT(distance(tensors_of_state(sharded), tensors_of_state(whole)), 1e-6) << dtype << parts;
      for (size_t i = 0; i < sharded.state.size(); ++i) {
        const Tensor& master = sharded.state[i].master;
        ASSERT_EQ(master.defined(), dtype == torch::kBFloat16);
        if (master.defined()) {
          EXPECT_TRUE(torch::equal(master.to(dtype), sharded.weights[i])) << i;
        }
      }
      job.recorded = true;
      const Outcome recorded = train(job);
      EXPECT_EQ(distance(recorded.weights, sharded.weights), 0) << dtype << parts;
      EXPECT_EQ(distance(tensors_of_state(recorded), tensors_of_state(sharded)), 0) << dtype << parts;
    }
}

TEST(DataParallel, StateOfTwoRanksContinuesOnAnyNumber) {
  const Outcome uninterrupted = train({});
  for (const bool shard : {true, false}) {
    const Outcome half = train({.world = 2, .shard = shard, .steps = 5});
    for (const Job& job : {Job{.world = 1}, Job{.world = 3, .shard = true}, Job{.world = 3}}) {
      Job rest = job;
      rest.first_step = 5, rest.steps = 5;
      const Outcome continued = train(rest, half);
      EXPECT_LT(distance(continued.weights, uninterrupted.weights), 1e-7) << shard << job.world << job.shard;
      EXPECT_LT(distance(tensors_of_state(continued), tensors_of_state(uninterrupted)), 1e-7) << shard << job.world << job.shard;
    }
  }
}

struct TwoVectors : torch::nn::Module {
  Tensor first, second;
  TwoVectors() {
    first = register_parameter("first", torch::arange(5, torch::kFloat));
    second = register_parameter("second", torch::ones({3}));
  }
};

TEST(DataParallel, ALossThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const bool shard : {false, true})
    for (const bool in_gradient : {false, true})
      on_ranks(2, [&](const std::shared_ptr<Collectives>& ranks) {
        TwoVectors module;
        AdamW optimizer(module, {}, ranks, shard);
        const auto step = [&](double factor) {
          optimizer.zero_grad();
          const Tensor loss = (module.first.sum() + module.second.sum()) * (in_gradient && ranks->rank() == 1 ? factor : 0.5);
          loss.backward();
          optimizer.collect_gradients();
          const Tensor told = !in_gradient && ranks->rank() == 1 ? torch::tensor(factor, torch::kFloat) : torch::ones({});
          const auto [loss_and_norm, update_enabled] = optimizer.clip_gradients(told);
          optimizer.step(optimizer.make_rate(0.1), update_enabled);
          return loss_and_norm;
        };
        const Tensor before = module.first.detach().clone();
        EXPECT_FALSE(step(inf)[in_gradient ? 1 : 0].isfinite().item<bool>());
        EXPECT_TRUE(torch::equal(module.first, before)) << shard << in_gradient;
        const Tensor figures = step(0.5);
        EXPECT_NEAR(figures[1].item<double>(), std::sqrt(8.0), 1e-6);
        EXPECT_TRUE((module.first < before).all().item<bool>()) << shard << in_gradient;
      });
}

// Batches that make the loss of rank 1 infinite: all ranks go through the step's communication, although `look` is set.
TEST(DataParallel, LookingAtLossesKeepsTheRanksInStep) {
  on_ranks(2, [&](const std::shared_ptr<Collectives>& ranks) {
    const auto model = make_model(small_model(0), 1);
    model->train();
    AdamW optimizer(*model, {}, ranks);
    TrainStep step(*model, optimizer, {.ranks = ranks});
    const Tensor before = model->parameters()[0].detach().clone();
    Batch batch = rows_of_step(0, 6 * ranks->rank(), 6);
    if (ranks->rank() == 1) batch.step_labels = 0;  // the loss's weight becomes infinite
    EXPECT_FALSE(step.run({batch}, 0, 1e-3, /*look=*/true)[0].isfinite().item<bool>());
    EXPECT_TRUE(torch::equal(model->parameters()[0], before));
    EXPECT_TRUE(step.run({rows_of_step(1, 6 * ranks->rank(), 6)}, 1, 1e-3, /*look=*/true).isfinite().all().item<bool>());
    EXPECT_FALSE(torch::equal(model->parameters()[0], before));
  });
}

TEST(DataParallel, AParameterWithoutAGradientOnOneRankCountsAsZeroThere) {
  for (const bool shard : {false, true})
    on_ranks(2, [&](const std::shared_ptr<Collectives>& ranks) {
      TwoVectors module;
      AdamW optimizer(module, {}, ranks, shard, /*bucket_bytes=*/1);  // a bucket for each parameter
      for (const int64_t passes : {1, 2}) {
        optimizer.zero_grad(passes);
        for (int64_t pass = 0; pass < passes; ++pass) {
          if (ranks->rank() == 0)
            module.first.sum().backward();
          else if (pass == 0)
            (module.first.sum() + 2 * module.second.sum()).backward();
          optimizer.collect_gradients();
        }
        // first: 1 from each pass of rank 0 and from one of rank 1; second: 2 from rank 1
        const double of_first = static_cast<double>(passes) + 1;
        const Tensor norm = optimizer.clip_gradients(torch::zeros({})).loss_and_norm[1];
        EXPECT_NEAR(norm.item<double>(), std::sqrt(5 * of_first * of_first + 3 * 4), 1e-6) << shard << passes;
        optimizer.step(0.1);
      }
    });
}

TEST(FlatBuckets, DivideParametersInReverseAmongTheRanks) {
  const std::vector<Tensor> parameters{torch::zeros({300}), torch::zeros({7, 5}), torch::zeros({64}, torch::kBFloat16),
                                       torch::zeros({1000}, torch::kBFloat16)};
  for (const int64_t world : {1, 2, 3}) {
    const std::vector<FlatBucket> buckets = make_flat_buckets(parameters, world, 2200);
    ASSERT_EQ(buckets.size(), 2U);  // 1,088 elements of bf16; 64 and 320 of fp32
    EXPECT_EQ(buckets[0].dtype, torch::kBFloat16);
    EXPECT_EQ(buckets[0].members[0].parameter, 3U);
    EXPECT_EQ(buckets[1].members[1].parameter, 0U);
    for (const FlatBucket& bucket : buckets) {
      int64_t end = 0;
      for (const FlatBucket::Member& member : bucket.members) {
        EXPECT_GE(member.begin, end);
        EXPECT_EQ(member.count, parameters[member.parameter].numel());
        end = member.begin + member.count;
        int64_t owned = 0;
        for (int64_t rank = 0; rank < world; ++rank) {
          const FlatBucket::Range range = bucket.owned(member, rank);
          if (range.count == 0) continue;
          EXPECT_EQ(range.in_parameter, owned);
          EXPECT_EQ(rank * bucket.part + range.in_part, member.begin + range.in_parameter);
          EXPECT_LE(range.in_part + range.count, bucket.part);
          owned += range.count;
        }
        EXPECT_EQ(owned, member.count);
      }
      EXPECT_LE(end, world * bucket.part);
    }
    EXPECT_EQ(make_flat_buckets(parameters, world, 1).size(), 4U);
  }
}

TEST(FlatBuckets, GpusOfOneHostHaveOneForEachType) {
  const std::vector<Tensor> parameters{torch::zeros({5000, 5000}), torch::zeros({7}), torch::zeros({64}, torch::kBFloat16)};
  EXPECT_EQ(make_flat_buckets(parameters, 2, default_bucket_bytes(torch::kCUDA, /*one_host=*/true)).size(), 2U);
  EXPECT_EQ(make_flat_buckets(parameters, 2, default_bucket_bytes(torch::kCUDA, /*one_host=*/false)).size(), 3U);
  EXPECT_EQ(make_flat_buckets(parameters, 2, default_bucket_bytes(torch::kCPU, /*one_host=*/true)).size(), 3U);
}

}  // namespace data_parallel_test
}  // namespace based
