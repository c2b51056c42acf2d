#include "based/serve/states/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/serve/protocol/api_error.h"
#include "tests/core/temporary_folder.h"
#include "tests/serve/states/states.h"

namespace based {
namespace state_store_test {

using ::testing::HasSubstr;

// The status of the ApiError that `run` throws; 0 if it does not throw.
template <class Run>
int status_of(Run run) {
  try {
    run();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 0;
}

class StateStores : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = distinct_model(torch::kCPU);
    state_ = state_after(*model_, some_text(20, 3));
    content_ = sequence_file_content(*state_, kModelHash, "state");
  }
  static void TearDownTestSuite() { model_.reset(), state_.reset(); }

  StateStore store(const StateStoreOptions& options = {}, const std::string& hash = kModelHash) {
    return {*model_, hash, options, folder_.path().string(), [this] { return now_; }};
  }

  static std::shared_ptr<LanguageModel> model_;
  static std::shared_ptr<const SequenceState> state_;
  static std::string content_;
  TemporaryFolder folder_;
  int64_t now_ = 1000;
};
std::shared_ptr<LanguageModel> StateStores::model_;
std::shared_ptr<const SequenceState> StateStores::state_;
std::string StateStores::content_;

TEST_F(StateStores, KeepTheBytesOfTheCommandLinesFileAndSurviveARestart) {
  const std::string path = folder_.file("command-line.file");
  save_sequence(path, *state_, kModelHash);
  EXPECT_EQ(read_file(path), content_);
  remove_file(path);
  StateInfo first, second;
  {
    StateStore before = store();
    first = before.put(state_, {.owner = "a", .label = "document", .document = Json{{"x", 1}}});
    now_ = 1001;
    second = before.put_file(content_, {.owner = "a", .parent = first.id});
    EXPECT_EQ(before.content("a", first.id), content_);
  }
  // Nothing is written by the destructor, so that a kill loses as little.
  StateStore after = store();
  EXPECT_EQ(after.content("a", first.id), content_);
  EXPECT_EQ(after.content("a", second.id), content_);
  const StoredState loaded = after.get("a", first.id);
  EXPECT_TRUE(equal_states(*loaded.sequence, *state_));
  EXPECT_FALSE(loaded.info.uploaded);
  EXPECT_TRUE(after.get("a", second.id).info.uploaded);
  const StateInfo info = after.info("a", first.id);
  EXPECT_EQ(info.document, (Json{{"x", 1}}));
  EXPECT_EQ(dump_json(info.to_json()), dump_json(first.to_json()));
  EXPECT_EQ(info.tokens, 20);
  EXPECT_EQ(info.bytes, static_cast<int64_t>(content_.size()));
  const std::vector<StateInfo> all = after.list("a");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, first.id);
  EXPECT_EQ(all[1].parent, first.id);
  EXPECT_NE(first.id, second.id);
}

TEST_F(StateStores, HideForeignStates) {
  StateStore states = store();
  const std::string id = states.put(state_, {.owner = "a"}).id;
  std::string unknown = id;
  unknown.back() = unknown.back() == '0' ? '1' : '0';
  for (const std::string& wrong : {unknown, std::string("st_"), std::string("../x"), std::string()}) {
    EXPECT_EQ(status_of([&] { states.get("a", wrong); }), 404) << wrong;
    EXPECT_EQ(status_of([&] { states.content("a", wrong); }), 404) << wrong;
  }
  EXPECT_EQ(status_of([&] { states.get("b", id); }), 404);
  EXPECT_EQ(status_of([&] { states.info("b", id); }), 404);
  EXPECT_EQ(status_of([&] { states.content("b", id); }), 404);
  EXPECT_EQ(status_of([&] { states.remove("b", id); }), 404);
  EXPECT_TRUE(states.list("b").empty());
  const std::string foreign = message_of<ApiError>([&] { states.get("b", id); });
  const std::string absent = message_of<ApiError>([&] { states.get("b", unknown); });
  EXPECT_EQ(foreign.substr(0, foreign.find(id)), absent.substr(0, absent.find(unknown)));
  states.remove("a", id);
  EXPECT_EQ(status_of([&] { states.get("a", id); }), 404);
  EXPECT_EQ(folder_.entries(), 0u);
}

TEST_F(StateStores, BelongToAModel) {
  const std::string id = store().put(state_, {.owner = "a"}).id;
  StateStore other = store({}, kOtherHash);
  EXPECT_EQ(status_of([&] { other.get("a", id); }), 409);
  EXPECT_EQ(status_of([&] { other.put_file(content_, {.owner = "a"}); }), 409);
  EXPECT_EQ(other.content("a", id), content_) << "the file can still be downloaded";
  EXPECT_EQ(other.list("a").size(), 1u);
}

TEST_F(StateStores, HaveAQuotaForEachOwner) {
  const auto bytes = static_cast<int64_t>(content_.size());
  StateStoreOptions options;
  options.owner_bytes = 2 * bytes;
  StateStore states = store(options);
  const std::string first = states.put(state_, {.owner = "a"}).id;
  states.put(state_, {.owner = "a"});
  const auto third = [&] { states.put(state_, {.owner = "a"}); };
  EXPECT_EQ(status_of(third), 413);
  EXPECT_THAT(message_of<ApiError>(third), HasSubstr(std::to_string(bytes) + " bytes"));
  EXPECT_EQ(folder_.entries(), 4u) << "nothing is left of the refused state";
  states.put(state_, {.owner = "b"});
  states.remove("a", first);
  states.put(state_, {.owner = "a"});
  EXPECT_EQ(states.metrics().bytes, 3 * bytes);

  StateStoreOptions few;
  few.owner_states = 1;
  StateStore in_memory(*model_, kModelHash, few);
  in_memory.put(state_, {.owner = "a"});
  EXPECT_EQ(status_of([&] { in_memory.put(state_, {.owner = "a"}); }), 413);
  StateStoreOptions small;
  small.memory_bytes = bytes - 1;
  StateStore too_small(*model_, kModelHash, small);
  EXPECT_EQ(status_of([&] { too_small.put(state_, {.owner = "a"}); }), 413) << "without a folder, memory bounds all states";
}

// A stored response's document counts too, also after a restart, until the response is removed.
TEST_F(StateStores, CountDocumentsInTheQuota) {
  const auto size = static_cast<int64_t>(content_.size());
  const Json document{{"text", std::string(static_cast<size_t>(size), 'x')}};
  const StateStoreOptions options{.owner_bytes = 3 * size};
  StateInfo first;
  {
    StateStore before = store(options);
    first = before.put(state_, {.owner = "a", .document = document});
    EXPECT_EQ(first.bytes, size);
    EXPECT_GT(before.metrics().bytes, 2 * size);
    EXPECT_EQ(status_of([&] { before.put(state_, {.owner = "a"}); }), 413);
  }
  StateStore after = store(options);
  EXPECT_EQ(status_of([&] { after.put(state_, {.owner = "a"}); }), 413);
  after.remove("a", first.id);
  EXPECT_EQ(after.metrics().bytes, 0);
  after.put(state_, {.owner = "a"});
  StateStore in_memory(*model_, kModelHash, {.memory_bytes = 3 * size});
  in_memory.put(state_, {.owner = "a", .document = document});
  EXPECT_EQ(status_of([&] { in_memory.put(state_, {.owner = "b"}); }), 413);
}

TEST_F(StateStores, RemoveStatesAtTheEndOfTheirTime) {
  StateStoreOptions options;
  options.ttl = 100;
  options.max_ttl = 200;
  const std::string short_lived = store(options).put(state_, {.owner = "a"}).id;
  StateStore states = store(options);
  const std::string longer = states.put(state_, {.owner = "a", .ttl = 200}).id;
  EXPECT_EQ(status_of([&] { states.put(state_, {.owner = "a", .ttl = 201}); }), 400);
  EXPECT_EQ(status_of([&] { states.put(state_, {.owner = "a", .ttl = 0}); }), 400);
  EXPECT_EQ(status_of([&] { states.put(state_, {.owner = "a", .ttl = -1}); }), 400);
  now_ = 1099;
  EXPECT_EQ(states.list("a").size(), 2u);
  now_ = 1100;
  EXPECT_EQ(status_of([&] { states.get("a", short_lived); }), 404);
  EXPECT_EQ(states.get("a", longer).info.expires, 1200);
  EXPECT_EQ(states.metrics().expired, 1);
  now_ = 1200;
  EXPECT_TRUE(store(options).list("a").empty());
  EXPECT_EQ(states.metrics().states, 0);
}

TEST_F(StateStores, KeepABoundedPartInMemory) {
  const auto bytes = static_cast<int64_t>(content_.size());
  StateStoreOptions options;
  options.memory_bytes = 2 * bytes;
  StateStore states = store(options);
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(states.put(state_, {.owner = "a"}).id);
  EXPECT_EQ(states.metrics().memory_bytes, 2 * bytes);
  for (const std::string& id : ids) EXPECT_TRUE(equal_states(*states.get("a", id).sequence, *state_));
  EXPECT_EQ(states.metrics().memory_bytes, 2 * bytes);
  EXPECT_GE(states.metrics().disk_reads, 3);
}

TEST_F(StateStores, AreSharedByTheirForks) {
  StateStore states = store();
  const std::string id = states.put(state_, {.owner = "a"}).id;
  const int64_t before = states.metrics().memory_bytes;
  std::vector<SequenceState> forks;
  forks.reserve(1000);
  for (int i = 0; i < 1000; ++i) forks.push_back(*states.get("a", id).sequence);
  const auto first = forks.front().state.named(), last = forks.back().state.named();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].value.data_ptr(), last[i].value.data_ptr()) << first[i].name;
  EXPECT_EQ(states.metrics().memory_bytes, before);
  Engine engine(*model_, {.slots = 2});
  std::vector<std::vector<int64_t>> texts;
  for (int i = 0; i < 3; ++i) engine.add(forks[static_cast<size_t>(i)], {.sampling = kGreedy, .max_tokens = 5});
  for (const auto& [sequence, tokens] : tokens_of(engine)) texts.push_back(tokens);
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0], greedy_text(*model_, state_->ids, 5));
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]) << "a fork changes neither the state nor other forks";
}

TEST_F(StateStores, SkipDamagedFiles) {
  std::vector<std::string> ids;
  {
    StateStore states = store();
    for (int i = 0; i < 6; ++i) ids.push_back(states.put(state_, {.owner = "a"}).id);
  }
  const auto path = [&](size_t i, const char* end) { return folder_.file(ids[i] + end); };
  std::string flipped = content_;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  write_file_atomic(path(0, ".state"), flipped);
  write_file_atomic(path(1, ".state"), content_.substr(0, content_.size() - 1));
  write_file_atomic(path(2, ".json"), "{\"id\": ");
  write_file_atomic(path(3, ".json"), "{\"id\": 3}");
  remove_file(path(4, ".json"));  // as if the server was killed between the two files
  StateStore states = store();
  const std::vector<StateInfo> left = states.list("a");
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(status_of([&] { states.get("a", ids[0]); }), 404) << "the checksum is wrong";
  EXPECT_EQ(states.metrics().damaged, 4);
  EXPECT_EQ(states.content("a", ids[5]), content_);
  EXPECT_FALSE(path_exists(path(4, ".state")));
  EXPECT_TRUE(path_exists(path(1, ".state"))) << "damaged files are left for their owner";
}

TEST_F(StateStores, RefuseUploadsThatAreNoStates) {
  StateStore states = store();
  const auto upload = [&](const std::string& content) { return status_of([&] { states.put_file(content, {.owner = "a"}); }); };
  for (size_t size = 0; size < content_.size(); size += 1 + content_.size() / 97) EXPECT_EQ(upload(content_.substr(0, size)), 400) << size;
  for (size_t at = 0; at < content_.size(); at += 1 + content_.size() / 89) {
    std::string changed = content_;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    EXPECT_EQ(upload(changed), 400) << at;
  }
  EXPECT_EQ(upload(content_ + "x"), 400);
  // Files with a right checksum whose content does not fit the model.
  SequenceState wrong = *state_;
  wrong.ids.back() = model_->config().vocab_size;
  EXPECT_EQ(upload(sequence_file_content(wrong, kModelHash, "state")), 400) << "an id outside the vocabulary";
  wrong.ids.assign(5, 1);
  EXPECT_EQ(upload(sequence_file_content(wrong, kModelHash, "state")), 400) << "the state has seen more tokens than there are";
  const auto other_model = distinct_model(torch::kCPU, "attn-tiny");
  EXPECT_EQ(upload(sequence_file_content(*state_after(*other_model, some_text(20, 3)), kModelHash, "state")), 400) << "other tensors";
  EXPECT_EQ(status_of([&] { states.put(state_, {.owner = "a", .label = std::string(257, 'x')}); }), 400);
  EXPECT_EQ(status_of([&] { states.put(state_, {.owner = "a", .label = "\xff"}); }), 400);
  EXPECT_EQ(folder_.entries(), 0u);
  EXPECT_EQ(upload(content_), 0);
}

}  // namespace state_store_test
}  // namespace based
