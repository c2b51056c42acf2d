#include "theory/index_protocol.h"
#include "based/data/index_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "theory/mamba_machine.h"

namespace based::theory {
namespace index_protocol_test {

using testing::ElementsAre;

TEST(IndexProtocol, TellsKeysAndValuesApart) { EXPECT_THAT(index_tokens({1, 0, 1}), ElementsAre(0, 4, 1, 3, 2, 4)); }

TEST(IndexProtocol, BobReadsWhatAliceSent) {
  const Bits bits{1, 0, 0, 1, 1};
  const RecurrentMachine machine = table_machine(5);
  const Bytes message = alice(machine, bits);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(bob(machine, message, 5, i), bits[static_cast<size_t>(i)]);
}

TEST(IndexProtocol, AnAnswerThatIsNoValueIsWrong) {
  RecurrentMachine machine = table_machine(3);
  machine.answer = [](const Bytes&, int64_t) { return int64_t{0}; };  // a key
  EXPECT_EQ(bob(machine, alice(machine, {0, 0, 0}), 3, 1), -1);
  const Errors errors = count_errors(machine, 3);
  EXPECT_EQ(errors.wrong, errors.questions);
  EXPECT_EQ(errors.best, 0);  // the states still contain all bits
}

// A custom machine, such as a trained model: functions of bytes, tokens and positions.
TEST(IndexProtocol, TakesAnyMachine) {
  RecurrentMachine machine;
  machine.name = "every token";
  machine.message_bits = 8 * 8;
  machine.initial = [] { return Bytes(); };
  machine.step = [](const Bytes& state, int64_t token, int64_t position) {
    EXPECT_EQ(static_cast<int64_t>(state.size()), position);
    return state + static_cast<char>(token);
  };
  machine.answer = [](const Bytes& state, int64_t query) { return static_cast<int64_t>(state[static_cast<size_t>(2 * query + 1)]); };
  EXPECT_EQ(count_errors(machine, 4).wrong, 0);
  EXPECT_EQ(find_collision(machine, 4), std::nullopt);
}

TEST(IndexProtocol, FindsWhatTwoCellsCannotHold) {
  const RecurrentMachine machine = hashed_machine(3, 2);
  const auto collision = find_collision(machine, 3);
  ASSERT_TRUE(collision);
  EXPECT_EQ(alice(machine, collision->first), alice(machine, collision->second));
  const auto index = static_cast<size_t>(collision->index);
  EXPECT_NE(collision->first[index], collision->second[index]);
  const Errors errors = count_errors(machine, 3);
  EXPECT_EQ(errors.questions, 24);
  EXPECT_EQ(errors.wrong, 4);  // key 0 has the value of key 2
  EXPECT_EQ(errors.best, 4);
}

TEST(IndexBound, IsOneMinusTheEntropyForEachBit) {
  EXPECT_EQ(index_bound(8, 0), 8);
  EXPECT_EQ(index_bound(8, 1), 8);  // answers that are always wrong have the same information
  EXPECT_EQ(index_bound(8, 0.5), 0);
  EXPECT_NEAR(index_bound(100, 0.11), 50, 0.1);
}

TEST(MambaMachine, RecallsPairsInAnyOrderAndSomeOfThem) {
  const MambaSizes sizes{4};
  const RecurrentMachine machine = mamba_machine(sizes);
  Bytes state = machine.initial();
  int64_t position = 0;
  for (const auto& [key, value] : {std::pair<int64_t, int64_t>{13, 1}, {2, 1}, {12, 0}, {14, 1}, {1, 0}}) {
    state = machine.step(state, key, position++);
    state = machine.step(state, sizes.keys() + value, position++);
  }
  for (const auto& [key, value] : {std::pair<int64_t, int64_t>{13, 1}, {2, 1}, {12, 0}, {14, 1}, {1, 0}})
    EXPECT_EQ(bob(machine, state, sizes.keys(), key), value) << key;
}

}  // namespace index_protocol_test
}  // namespace based::theory
