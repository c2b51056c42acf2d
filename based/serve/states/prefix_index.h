// The index of a prefix cache: a radix tree over token ids for each owner. It decides which entry a prompt can start from, where the prompt
// diverges from earlier ones, and which entry is evicted next. It holds only the sizes of the cached states, not the states, and needs no
// torch.
//
// A node of a tree is a prefix of recorded sequences. A node has an entry if the state after exactly its tokens is cached. Entries are in
// one of two tiers, memory and disk, each with its own order of eviction: entries at a regular interval that no prompt has used first,
// branch points last, and among equals the least recently used one first. A branch point is a node where recorded sequences diverge.
#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace based {

class PrefixIndex {
 public:
  enum class Tier { memory, disk };

  // `most_tokens`: the size of all trees, which is the number of recorded tokens and kNodeTokens for each node. Beyond it, the sequences
  // that were not used for the longest time are forgotten, those without entries first.
  explicit PrefixIndex(int64_t most_tokens);
  static constexpr int64_t kNodeTokens = 16;

  struct Match {
    int64_t entry = -1;        // the entry with the longest prefix of at most `most` tokens; −1: none
    int64_t entry_tokens = 0;  // its length
    int64_t common = 0;        // the length of the longest common prefix with any recorded sequence
  };
  Match match(const std::string& owner, std::span<const int64_t> ids, int64_t most) const;

  // Remembers a sequence. Returns the entries that were forgotten to make room. A sequence larger than all trees may be is not recorded.
  std::vector<int64_t> record(const std::string& owner, std::span<const int64_t> ids);

  struct Put {
    int64_t entry = -1;              // −1: the sequence is empty, or larger than all trees may be
    bool is_new = false;             // false: the prefix already had this entry, which now counts as used
    std::vector<int64_t> forgotten;  // other entries, which were forgotten to make room
  };
  // Adds an entry of `bytes` bytes for the state after these tokens, and records them. `interval`: it is at a regular interval.
  Put put(const std::string& owner, std::span<const int64_t> ids, int64_t bytes, Tier tier, bool interval = false);

  void use(int64_t entry);                         // it becomes the most recently used one
  void move(int64_t entry, Tier tier);             // its bytes count in this tier from now on
  void erase(int64_t entry);                       // its tokens stay recorded
  std::optional<int64_t> victim(Tier tier) const;  // the entry to evict first
  std::vector<int64_t> ranked(Tier tier) const;    // all entries of the tier in the order of eviction

  int64_t entries() const { return static_cast<int64_t>(entries_.size()); }
  int64_t bytes(Tier tier) const { return bytes_[static_cast<size_t>(tier)]; }
  int64_t tokens() const { return tokens_; }  // the size of all trees
  Tier tier(int64_t entry) const { return entries_.at(entry)->tier; }
  int64_t entry_bytes(int64_t entry) const { return entries_.at(entry)->bytes; }

 private:
  struct Node {
    explicit Node(std::pmr::memory_resource* memory) : children(memory), edge(memory) {}
    std::pmr::list<Node>::iterator self;     // in nodes_
    Node* parent = nullptr;                  // null: the root of an owner's tree
    std::pmr::map<int64_t, Node*> children;  // by the first token of their edges
    std::pmr::vector<int64_t> edge;          // the tokens after the parent's
    std::string owner;                       // set for roots
    int64_t used = 0;                        // the time of the last use, different for all nodes
    int64_t entry = -1, bytes = 0;           // −1: no entry
    Tier tier = Tier::memory;
    bool interval = false;
  };
  using Rank = std::pair<int, int64_t>;  // value, time of the last use

  static int64_t size(const Node& node) { return static_cast<int64_t>(node.edge.size()) + kNodeTokens; }
  static Rank rank_of(const Node& node);
  std::pmr::map<Rank, Node*>& ranks(const Node& node) { return ranks_[static_cast<size_t>(node.tier)]; }

  Node& new_node(Node* parent, std::span<const int64_t> edge);
  Node& descend(const std::string& owner, std::span<const int64_t> ids, bool exact);
  Node& split(Node& node, size_t length);
  void tidy(Node& node);
  void remove(Node& node);
  void list(Node& node);
  void unlist(Node& node);
  void touch(Node& node);
  void drop_entry(Node& node);
  std::vector<int64_t> make_room(const Node& keep);

  int64_t most_tokens_, tokens_ = 0, clock_ = 0, next_entry_ = 0;
  // The trees outlive the buffers of requests. Among these on the heap, each small block of a tree would split a free block that the next
  // request needs as a whole, so that the heap grew with every request.
  std::pmr::unsynchronized_pool_resource memory_{{.max_blocks_per_chunk = 1024, .largest_required_pool_block = 32768}};
  std::pmr::list<Node> nodes_{&memory_};  // flat, so that no destructor recurses along a path
  std::map<std::string, Node*> roots_;
  std::pmr::map<int64_t, Node*> entries_{&memory_};
  std::array<int64_t, 2> bytes_{};
  // The nodes with entries in each tier.
  std::array<std::pmr::map<Rank, Node*>, 2> ranks_{std::pmr::map<Rank, Node*>(&memory_), std::pmr::map<Rank, Node*>(&memory_)};
  std::pmr::map<int64_t, Node*> bare_leaves_{&memory_};  // leaves without an entry, by the time of their last use
};

}  // namespace based
