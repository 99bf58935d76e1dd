// The step time of a placement as one would write it by hand in C++: an event loop over one heap.
//
// A tensor crosses to each device once; queues serve in the order of readiness, so that a start is
// known as soon as its turn comes: start = max(now, when its queues are free). An event is an op
// that is ready, or a finished op that sends; ties go by the number of the op. The loop knows
// neither rounds (no op may last 0 ps) nor placements that cannot be. Of memory it knows what totals
// tell: whether all that is ever made or received on a device, with the most that one of its ops
// needs while it runs, is within the device's capacity.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using Time = std::int64_t;  // ps
using Key = std::uint64_t;  // a time and, in its low bits, an event: op (ready) or ops + op (sends)
constexpr Key NEVER = std::numeric_limits<Key>::max();

// A binary heap; the key behind the last is NEVER.
struct Heap {
    std::vector<Key> keys;
    int size = 0;

    void rise(int at, Key key) {
        for (; at > 0 && key < keys[(at - 1) / 2]; at = (at - 1) / 2) keys[at] = keys[(at - 1) / 2];
        keys[at] = key;
    }
    void push(Key key) { rise(size++, key); }
    Key pop() {
        const Key top = keys[0], key = keys[--size];
        keys[size] = NEVER;
        int at = 0;
        for (int child = 1; child < size; child = 2 * at + 1) {
            child += keys[child + 1] < keys[child];
            keys[at] = keys[child];
            at = child;
        }
        if (size > 0) rise(at, key);
        return top;
    }
};

struct Bytes {
    std::vector<std::int64_t> kept, running;  // by op: throughout and in its tensors; while it runs
    std::vector<std::int64_t> sent, room;     // by tensor; by device
};

class Loop {
  public:
    Loop(int ops, int devices, int tensors, bool shared, const Time* duration, const Time* sending,
         const int* waits, const int* tensor, const int* readers, const int* reader)
        : ops_(ops), devices_(devices), shared_(shared),
          duration_(duration, duration + ops * devices),
          sending_(sending, sending + tensors * devices * devices), waits_(waits, waits + ops),
          tensor_(tensor, tensor + ops + 1), readers_(readers, readers + tensors + 1),
          reader_(reader, reader + readers[tensors]), ready_(ops), device_free_(devices),
          link_free_(devices), arrival_(devices) {
        while (2 * ops >> bits_) ++bits_;
        heap_.keys.assign(2 * ops + 2, NEVER);
        for (int op = 0; op < ops; ++op)
            if (waits[op] == 0) roots_.push_back(op);
    }

    void weigh(const std::int64_t* kept, const std::int64_t* running, const std::int64_t* sent,
               const std::int64_t* room) {
        const int tensors = readers_.size() - 1;
        bytes_ = {{kept, kept + ops_}, {running, running + ops_}, {sent, sent + tensors},
                  {room, room + devices_}};
        total_.resize(devices_), most_.resize(devices_);
    }

    // Whether totals prove that a placement fits, after a step that counted them.
    bool fits() const {
        for (int d = 0; d < devices_; ++d)
            if (total_[d] + most_[d] > bytes_.room[d]) return false;
        return true;
    }

    template <bool COUNTS>
    Time step(const Time* placement) {
        if (COUNTS) count_ops(placement);
        missing_ = waits_;
        std::fill(ready_.begin(), ready_.end(), 0);
        std::fill(device_free_.begin(), device_free_.end(), 0);
        std::fill(link_free_.begin(), link_free_.end(), 0);
        last_ = 0;
        for (const int op : roots_) compute(placement, op, 0);
        while (heap_.size > 0) {
            const Key key = heap_.pop();
            const int event = key & ((Key(1) << bits_) - 1);
            if (event < ops_)
                compute(placement, event, key >> bits_);
            else
                send<COUNTS>(placement, event - ops_, key >> bits_);
        }
        return last_;
    }

  private:
    // A ready op runs when its device is free; its readers there wait for nothing more.
    void compute(const Time* placement, int op, Time now) {
        const int device = placement[op];
        const Time finish =
            std::max(now, device_free_[device]) + duration_[op * devices_ + device];
        device_free_[device] = finish;
        last_ = std::max(last_, finish);
        bool away = false;
        for (int e = readers_[tensor_[op]]; e < readers_[tensor_[op + 1]]; ++e)
            if (placement[reader_[e]] == device)
                release(reader_[e], finish);
            else
                away = true;
        if (away) heap_.push(Key(finish) << bits_ | (ops_ + op));
    }

    void count_ops(const Time* placement) {
        std::fill(total_.begin(), total_.end(), 0);
        std::fill(most_.begin(), most_.end(), 0);
        for (int op = 0; op < ops_; ++op) {
            const int device = placement[op];
            total_[device] += bytes_.kept[op];
            most_[device] = std::max(most_[device], bytes_.running[op]);
        }
    }

    // A finished op sends each tensor to each other device that reads it, in their order.
    template <bool COUNTS>
    void send(const Time* placement, int op, Time now) {
        const int source = placement[op];
        for (int t = tensor_[op]; t < tensor_[op + 1]; ++t) {
            const Time* lasts = &sending_[(t * devices_ + source) * devices_];
            const std::uint64_t to = shared_ || COUNTS ? readers_elsewhere(placement, t, source) : 0;
            if (COUNTS)
                for (std::uint64_t left = to; left != 0; left &= left - 1)
                    total_[__builtin_ctzll(left)] += bytes_.sent[t];
            if (shared_)
                queue(to, source, now, lasts);
            else
                for (int d = 0; d < devices_; ++d) arrival_[d] = now + lasts[d];
            for (int e = readers_[t]; e < readers_[t + 1]; ++e)
                if (placement[reader_[e]] != source)
                    release(reader_[e], arrival_[placement[reader_[e]]]);
        }
    }

    // The other devices that read a tensor, a bit each.
    std::uint64_t readers_elsewhere(const Time* placement, int tensor, int source) const {
        std::uint64_t to = 0;
        for (int e = readers_[tensor]; e < readers_[tensor + 1]; ++e)
            to |= std::uint64_t(1) << placement[reader_[e]];
        return to & ~(std::uint64_t(1) << source);
    }

    // The transfers of a tensor, one after another on the queues of their devices.
    void queue(std::uint64_t to, int source, Time now, const Time* lasts) {
        for (; to != 0; to &= to - 1) {
            const int device = __builtin_ctzll(to);
            const Time start = std::max({now, link_free_[source], link_free_[device]});
            arrival_[device] = start + lasts[device];
            link_free_[source] = link_free_[device] = arrival_[device];
        }
    }

    void release(int op, Time at) {
        ready_[op] = std::max(ready_[op], at);
        if (--missing_[op] == 0) heap_.push(Key(ready_[op]) << bits_ | op);
    }

    const int ops_, devices_;
    const bool shared_;  // half-duplex: a transfer holds the one queue of both its devices
    int bits_ = 0;
    const std::vector<Time> duration_, sending_;  // by op and device; by tensor and two devices
    const std::vector<int> waits_, tensor_, readers_, reader_;
    std::vector<int> roots_, missing_;
    std::vector<Time> ready_, device_free_, link_free_, arrival_;
    Heap heap_;
    Time last_ = 0;
    Bytes bytes_;
    std::vector<std::int64_t> total_, most_;  // by device
};

}  // namespace

extern "C" {

Loop* loop_new(int ops, int devices, int tensors, int shared, const Time* duration,
               const Time* sending, const int* waits, const int* tensor, const int* readers,
               const int* reader) {
    return new Loop(ops, devices, tensors, shared != 0, duration, sending, waits, tensor, readers,
                    reader);
}

Time loop_step(Loop* loop, const Time* placement) { return loop->step<false>(placement); }

void loop_weigh(Loop* loop, const std::int64_t* kept, const std::int64_t* running,
                const std::int64_t* sent, const std::int64_t* room) {
    loop->weigh(kept, running, sent, room);
}

// The step time, negative where totals do not prove that it fits.
Time loop_fit(Loop* loop, const Time* placement) {
    const Time step = loop->step<true>(placement);
    return loop->fits() ? step : -step;
}

void loop_delete(Loop* loop) { delete loop; }
}
