// Many sequences at once, in the slots of one state. Sequences are added, forked, saved, taken up again and removed at any time, also while
// others go on; those that find no free slot wait for one. A prompt is read by the parallel form, in pieces of bounded memory between the
// steps of the others; a step then draws one token for every sequence whose prompt has been read.
//
// A sequence's tokens do not depend on what its neighbours hold. Its bits do: on which prompts are read together, on where a text is cut
// into pieces, and on a GPU on the number of slots. Where EngineOptions::decode.invariant is set, they depend on the sequence's tokens and
// the model alone, on one machine: each text is read alone, in cells (generate/cells.h).
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "based/generate/cells.h"
#include "based/generate/decode_step.h"
#include "based/generate/pages.h"
#include "based/generate/sequence.h"

namespace based {

struct EngineOptions {
  int64_t slots = 1;
  // Of models whose state grows (attention over everything): the tokens that all sequences together may have. Their keys and values lie in
  // pages of a pool of that size, which sequences take as they grow and give back; one waits until all that it may need is free. 0: the
  // cache grows with the sequences, and steps are plain.
  int64_t cache_tokens = 0;
  // Of prompts, read between two steps; 0: 1024 on the CPU, 8192 on a GPU. Of invariant steps whole cells, at least one.
  int64_t prefill_tokens = 0;
  // How many steps' worth of free slots may go by before prompts are read between the steps of others: reading a few costs a GPU as much as
  // a few steps, so that throughput gains where several are read together. 0: they are read at once.
  int64_t patience = 0;
  // step() launches the next step before it waits for the tokens of this one, so that a GPU never waits for the host. What then asks for a
  // sequence's state or changes its tokens waits for that step first; its token is the next one that step() gives. A sequence that a stop
  // token ends has been stepped once too often: beside sequences whose state is kept, tokens are therefore looked at first.
  bool ahead = false;
  bool padded_columns = false;  // SequenceOptions::scores count the padding rows of the embedding (LanguageModel::token_log_probabilities)
  DecodeOptions decode = {};
};

int64_t default_prefill_tokens(torch::Device device);

class Engine {
 public:
  // Throws UsageError for options out of range.
  Engine(LanguageModel& model, const EngineOptions& options);

  LanguageModel& model() const { return model_; }
  int64_t slots() const { return static_cast<int64_t>(owner_.size()); }
  int64_t free_slots() const;
  int64_t state_bytes() const;
  int64_t pending_bytes() const { return decode_->pending_bytes(); }       // of these, for pending tokens (decode/pending.h)
  int64_t begins_bytes() const { return begins_ ? begins_->bytes() : 0; }  // of these, for states at the begins of cells
  const ModelState& state() const { return state_; }
  // Nothing is left to do: no sequence waits, is read or goes on.
  bool idle() const { return waiting_.empty() && staged_ < 0 && going_on_ == 0 && landed_.empty(); }

  // The number of the new sequence. Throws Error for an empty sequence, for an id outside the vocabulary, and for one that can never have
  // room; UsageError for wrong options.
  int64_t add(std::vector<int64_t> text, const SequenceOptions& options);
  // Tokens that the state has not seen are read first; where this engine reads in cells and the state was not made in such, all are.
  int64_t add(SequenceState from, const SequenceOptions& options);
  int64_t fork(int64_t sequence, const SequenceOptions& options) { return add(snapshot(sequence), options); }
  // More tokens behind a sequence that has not ended, which are read before others that wait; throws as add.
  void extend(int64_t sequence, const std::vector<int64_t>& more);
  void set_sampling(int64_t sequence, const SamplingOptions& sampling);  // from its next token on
  void end(int64_t sequence);                                            // as if a stop token had come
  void remove(int64_t sequence);                                         // it is forgotten, wherever it was

  // In canonical form, in memory of its own. Taking it flushes the sequence's buffers, so that both go on with the same bits. Where texts
  // are read in cells, the state is that at the begin of the sequence's cell. Of an ended sequence only where its options keep the state
  // (Error).
  SequenceState snapshot(int64_t sequence);
  const std::vector<int64_t>& text(int64_t sequence) const { return sequences_.at(sequence).text; }
  Finish finish(int64_t sequence) const { return sequences_.at(sequence).finish; }
  // Of SequenceOptions::scores: the log-probabilities of the sequence's tokens from the second one on that the state has seen and
  // predicted. Where texts are read in cells: of those after the first one that was read here, up to the last one that was given.
  const std::vector<float>& scores(int64_t sequence) const { return sequences_.at(sequence).scores; }
  bool keeps_log_probabilities() const { return decode_->keeps_log_probabilities(); }

  struct Drawn {
    int64_t sequence = 0;
    int64_t token = -1;         // −1: it ended before one could be drawn
    float log_probability = 0;  // of the token by the model's own softmax; where DecodeOptions asks for it
    Finish finish = Finish::none;
  };
  // Reads what prompts wait, up to prefill_tokens of them, and draws a token for every sequence that has been read; where texts are read in
  // cells, one that has tokens after its last whole cell reads one of them instead. What has ended gives its slot to one that waits; its
  // tokens stay until it is removed.
  const std::vector<Drawn>& step();
  // Reads all prompts for which there are slots, in cells as far as these are whole; `after_each` is called after each piece.
  void read(const std::function<void()>& after_each = {});
  int64_t tokens_read() const { return tokens_read_; }  // by the parallel form, in all
  // Steps without looking at their tokens, for measuring, as if they were 0: all sequences must have been read, and none ends.
  void run(int64_t steps);

 private:
  struct Sequence {
    SequenceOptions options;
    std::vector<int64_t> text;
    std::vector<float> scores;
    std::optional<ModelState> held;  // its state, where it lies in no slot; absent: nothing has been read
    int64_t seen = 0;                // tokens that its state has seen
    int64_t drawn = 0, slot = -1;
    int64_t in_flight = 0;  // steps of it that have been launched, whose tokens nobody has looked at
    int64_t reserved = 0;   // tokens of the cache that it may fill
    // Where texts are read in cells: the tokens before its cell, those before the first one that was read here, and whether the device has
    // still to be told the token that the next step reads.
    int64_t begin = 0, first = 0;
    bool steps_through = false;
    Finish finish = Finish::none;
    bool reads = true;  // the parallel form has still to read tokens before the last one
    int64_t unread() const { return static_cast<int64_t>(text.size()) - 1 - seen; }
    int64_t draws_in_flight() const { return std::clamp<int64_t>(in_flight - unread(), 0, in_flight); }
  };

  void warm_up();
  void check_text(const std::vector<int64_t>& text, size_t from) const;
  int64_t add_sequence(Sequence sequence);
  // Reading, and what leads to it.
  bool read_some();
  bool can_wait();
  bool give_slot(int64_t id, Sequence& sequence);
  bool reserve(Sequence& sequence, int64_t tokens);
  int64_t read_staged(int64_t budget);
  void stage(int64_t id, Sequence& sequence);
  void read_together(const std::vector<int64_t>& ids, int64_t most_tokens);
  void keep_scores(const Tensor& hidden, const std::vector<Sequence*>& sequences, const std::vector<int64_t>& tokens);
  void read_piece(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences, int64_t most_tokens);
  void read_pieces(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences, int64_t most_tokens);
  void put_into_slots(const std::vector<Sequence*>& sequences);
  void start(const std::vector<Sequence*>& sequences);
  void begin_drawing(const std::vector<Sequence*>& sequences);
  // Cells (engine_cells.cpp).
  int64_t to_read(const Sequence& sequence) const;
  int64_t most_to_read(int64_t budget) const;
  void begin_cell(Sequence& sequence);
  void score_tail(Sequence& sequence);
  bool goes_back(Sequence& sequence);
  void complete_cell(Sequence& sequence);
  void give_tokens(const std::vector<int64_t>& slots);
  ModelState state_of(const Sequence& sequence);
  std::string cells() const { return cell_ > 0 ? describe_cells(model_) : ""; }
  // Steps.
  Finish limit(Sequence& sequence, int64_t tokens);
  std::vector<int64_t> slots_to_step();
  bool launch();
  void land();
  void land_early();
  void rewind_others(const std::vector<int64_t>& slots);
  void take_token(int64_t id, Sequence& sequence, int64_t token, float log_probability);
  void finish_sequence(Sequence& sequence, Finish why);
  void release_slot(Sequence& sequence);
  ModelState extract(int64_t slot, int64_t tokens);
  void insert(const ModelState& one, int64_t slot);
  Tensor on_device(const std::vector<int64_t>& values) const;
  Sequence& find(int64_t sequence);

  LanguageModel& model_;
  int64_t prefill_tokens_;
  int64_t cell_;  // tokens of a cell, of which each is read by itself; 0: texts are read together, in pieces of any lengths
  ModelState state_;
  std::optional<CellBegins> begins_;
  std::optional<PagePool> pages_;  // of a state that grows
  std::unique_ptr<DecodeStep> decode_;
  std::map<int64_t, Sequence> sequences_;
  std::deque<int64_t> waiting_;  // to be read, in this order
  std::vector<int64_t> owner_;   // the sequence in each slot; −1: none
  // Where all slots are stepped, a prompt that takes several pieces is read in a state of its own: this sequence's, −1 for none.
  int64_t staged_ = -1;
  ModelState staging_;
  int64_t next_ = 0, going_on_ = 0, reserved_ = 0, tokens_read_ = 0;
  bool ahead_, padded_columns_;
  int64_t patience_, unused_ = 0;      // unused_: slots that were free while sequences waited, added up over steps
  std::vector<Drawn> drawn_, landed_;  // what step() gives; what the next one gives first
  // Slot and sequence of each token of the steps that have been launched, of which there are at most DecodeStep::kFetches.
  std::deque<std::vector<std::pair<int64_t, int64_t>>> in_flight_;
};

}  // namespace based
