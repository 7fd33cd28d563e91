// A collective as messages: every member tells every other one what it was asked for, followed by what that
// one needs. Whatever does not match is reported by both.
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/nccl.h"

namespace gpu_emulator::nccl {
namespace {

// What a member was asked for.
struct Header {
    std::int32_t function = 0, type = 0, op = 0, root = 0, failed = 0, rank = 0;
    std::int64_t count = 0, sequence = 0;
};

constexpr const char* kFunctions[] = {"all-reduce", "reduce-scatter", "all-gather",
                                      "broadcast",  "send",           "receive"};
constexpr const char* kTypes[] = {"int8",   "uint8", "int32", "uint32", "int64",
                                  "uint64", "fp16",  "fp32",  "fp64",   "bf16"};
constexpr const char* kOps[] = {"sum", "product", "maximum", "minimum", "average"};

std::string describe(const Header& header) {
    const auto function = static_cast<Function>(header.function);
    std::ostringstream text;
    text << "rank " << header.rank << " " << kFunctions[header.function] << " number "
         << header.sequence << " of " << header.count << " " << kTypes[header.type];
    if (function == Function::kAllReduce || function == Function::kReduceScatter)
        text << ", " << kOps[header.op];
    if (function == Function::kBroadcast) text << " from " << header.root;
    return text.str();
}

bool is_collective(Function function) { return function < Function::kSend; }

class Exchange {
  public:
    Exchange(std::shared_ptr<Member> member, const Call& call)
        : member_(std::move(member)), call_(call), unit_(size_of(call.type) * call.count) {
        ++member_->unfinished;
        peers_.resize(static_cast<std::size_t>(member_->size));
    }

    // True when it is done, or given up because the communicator was aborted. What fails stays, as a
    // kernel of NCCL does, until then.
    bool advance() {
        if (member_->aborted) return give_up();
        if (member_->has_failed()) return false;
        if (!began_) start();
        bool complete = true;
        for (int peer = 0; peer < member_->size; ++peer) {
            complete = follow(peer) && complete;
            if (member_->has_failed()) return false;
        }
        for (const MessagePtr& message : sent_) complete = message->done() && complete;
        if (!complete || member_->has_failed()) return false;
        write_output();
        --member_->unfinished;
        return true;
    }

  private:
    struct Peer {
        MessagePtr header, payload;
        bool checked = false;
    };

    bool give_up() {
        for (Peer& peer : peers_) {
            Message::abandon(peer.header);
            Message::abandon(peer.payload);
        }
        for (const MessagePtr& message : sent_) Message::abandon(message);
        --member_->unfinished;
        return true;
    }

    void start() {
        began_ = true;
        const bool collective = is_collective(call_.function);
        Header& mine = mine_;
        mine.function = static_cast<std::int32_t>(call_.function);
        mine.type = call_.type;
        mine.op = call_.op;
        mine.root = collective ? call_.peer : 0;
        mine.rank = member_->rank;
        mine.count = static_cast<std::int64_t>(call_.count);
        const auto at = static_cast<std::size_t>(call_.peer);
        mine.sequence = collective                          ? ++member_->collectives
                        : call_.function == Function::kSend ? ++member_->sent[at]
                                                            : ++member_->received[at];
        if (is_to_fail(mine)) {
            return fail(*member_, ncclSystemError,
                        "EVENKEEL_EMULATED_NCCL_FAILS asks for it: " + describe(mine));
        }
        read_input();
        for (int step = 1; step < member_->size; ++step) {
            const int to = (member_->rank + step) % member_->size;
            const int from = (member_->rank - step + member_->size) % member_->size;
            if (collective || (call_.function == Function::kSend && to == call_.peer)) send_to(to);
            if (collective || (call_.function == Function::kReceive && from == call_.peer)) {
                peers_[static_cast<std::size_t>(from)].header =
                    Message::receive(world_rank(from), member_->tag, sizeof(Header));
            }
        }
    }

    // EVENKEEL_EMULATED_NCCL_FAILS=RANK:NUMBER, a rank of MPI_COMM_WORLD and the number of a collective.
    bool is_to_fail(const Header& header) const {
        const char* const text = std::getenv("EVENKEEL_EMULATED_NCCL_FAILS");
        if (text == nullptr) return false;
        std::ostringstream mine;
        mine << world_rank(member_->rank) << ":" << header.sequence;
        return mine.str() == text;
    }

    int world_rank(int rank) const { return member_->world[static_cast<std::size_t>(rank)]; }

    std::size_t input_bytes() const {
        if (call_.function == Function::kReduceScatter)
            return unit_ * static_cast<std::size_t>(member_->size);
        if (call_.function == Function::kReceive) return 0;
        if (call_.function == Function::kBroadcast && call_.peer != member_->rank) return 0;
        return unit_;
    }

    void read_input() {
        input_.resize(input_bytes());
        if (!input_.empty()) copy_to_host(input_.data(), call_.input, input_.size());
    }

    void send_to(int peer) {
        sent_.push_back(Message::send(world_rank(peer), member_->tag, to_bytes(mine_)));
        if (input_.empty()) return;
        Bytes part = input_;
        if (call_.function == Function::kReduceScatter) {
            const auto first = input_.begin() + static_cast<std::ptrdiff_t>(unit_) * peer;
            part.assign(first, first + static_cast<std::ptrdiff_t>(unit_));
        }
        sent_.push_back(Message::send(world_rank(peer), member_->tag, std::move(part)));
    }

    bool has_payload(int peer) const {
        return unit_ > 0 && (call_.function != Function::kBroadcast || peer == call_.peer);
    }

    // True when the peer has sent all that is expected of it.
    bool follow(int peer) {
        Peer& state = peers_[static_cast<std::size_t>(peer)];
        if (state.header == nullptr) return true;
        if (!state.checked) {
            if (!state.header->done()) return false;
            Header theirs;
            std::memcpy(&theirs, state.header->bytes().data(), sizeof theirs);
            if (!matches(theirs)) return false;
            state.checked = true;
            if (has_payload(peer))
                state.payload = Message::receive(world_rank(peer), member_->tag, unit_);
        }
        return state.payload == nullptr || state.payload->done();
    }

    bool matches(const Header& theirs) {
        if (theirs.failed != 0) {
            std::ostringstream text;
            text << "rank " << theirs.rank << " of the communicator has failed";
            fail(*member_, ncclRemoteError, text.str());
            return false;
        }
        Header want = mine_;
        want.rank = theirs.rank;
        if (call_.function == Function::kReceive)
            want.function = static_cast<std::int32_t>(Function::kSend);
        if (std::memcmp(&want, &theirs, sizeof want) == 0) return true;
        const std::string text =
            "NCCL: calls do not match: " + describe(mine_) + "; " + describe(theirs);
        report(text);
        fail(*member_, ncclInvalidUsage, text);
        return false;
    }

    void write_output() {
        const std::size_t size = static_cast<std::size_t>(member_->size),
                          rank = static_cast<std::size_t>(member_->rank);
        const auto source = [&](std::size_t r) -> const std::byte* {
            if (r != rank) return peers_[r].payload->bytes().data();
            return input_.data() + (call_.function == Function::kReduceScatter ? unit_ * rank : 0);
        };
        Bytes out;
        switch (call_.function) {
            case Function::kAllReduce:
            case Function::kReduceScatter: {
                std::vector<const std::byte*> sources;
                for (std::size_t r = 0; unit_ > 0 && r < size; ++r) sources.push_back(source(r));
                out.resize(unit_);
                reduce(call_.type, call_.op, sources, out.data(), call_.count);
                break;
            }
            case Function::kAllGather:
                for (std::size_t r = 0; unit_ > 0 && r < size; ++r)
                    out.insert(out.end(), source(r), source(r) + unit_);
                break;
            case Function::kBroadcast:
            case Function::kReceive:
                if (unit_ > 0 && member_->rank != call_.peer) {
                    out = peers_[static_cast<std::size_t>(call_.peer)].payload->bytes();
                } else {
                    out = input_;
                }
                break;
            case Function::kSend:
                break;
        }
        if (!out.empty()) copy_to_device(call_.output, out.data(), out.size());
    }

    std::shared_ptr<Member> member_;
    Call call_;
    std::size_t unit_;  // bytes of the smaller of input and output
    bool began_ = false;
    Header mine_;
    Bytes input_;
    std::vector<Peer> peers_;
    std::vector<MessagePtr> sent_;
};

}  // namespace

void fail(Member& member, ncclResult_t result, const std::string& text) {
    member.result = result;
    member.error = text;
    Header header;
    header.failed = 1;
    header.rank = member.rank;
    for (int peer = 0; peer < member.size; ++peer) {
        if (peer == member.rank) continue;
        Message::abandon(Message::send(member.world[static_cast<std::size_t>(peer)], member.tag,
                                       to_bytes(header)));
    }
}

Advance begin(const std::shared_ptr<Member>& member, const Call& call) {
    const auto exchange = std::make_shared<Exchange>(member, call);
    return [exchange] { return exchange->advance(); };
}

}  // namespace gpu_emulator::nccl
