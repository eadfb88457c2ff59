package leases_test

import (
	"context"
	"fmt"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// A resource rejects an owner whose epoch is over.
func Example() {
	ctx := context.Background()
	table := leases.NewMemory(nil) // objectlease, etcdlease and dynamolease have shared ones
	a, _ := leases.NewProcess(table, leases.Options{Node: "a"})
	b, _ := leases.NewProcess(table, leases.Options{Node: "b"})

	fence := map[string]uint64{}
	write := func(key string, epoch uint64) error {
		if epoch < fence[key] {
			return fmt.Errorf("%s: epoch %d is over, %d has come", key, epoch, fence[key])
		}
		fence[key] = epoch
		return nil
	}

	first, _ := a.Acquire(ctx, "accounts/7", leases.Terms{TTL: 30 * time.Second})
	fmt.Println("a has it at epoch", first.Epoch(), "and writes:", write("accounts/7", first.Epoch()))
	_ = a.Release(ctx, first)
	second, _ := b.Acquire(ctx, "accounts/7", leases.Terms{TTL: 30 * time.Second})
	fmt.Println("b has it at epoch", second.Epoch(), "and writes:", write("accounts/7", second.Epoch()))
	fmt.Println("a, which did not notice:", write("accounts/7", first.Epoch()))
	// Output:
	// a has it at epoch 1 and writes: <nil>
	// b has it at epoch 2 and writes: <nil>
	// a, which did not notice: accounts/7: epoch 1 is over, 2 has come
}

// A keeper holds many leases, and ends the work on a key before its time is over.
func ExampleKeeper() {
	ctx := context.Background()
	p, _ := leases.NewProcess(leases.NewMemory(nil), leases.Options{Node: "a"})
	keeper := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 30 * time.Second, Stop: 5 * time.Second}})
	held, _ := keeper.Acquire(ctx, "accounts/7")
	work := func(ctx context.Context, epoch uint64) {
		fmt.Println("at work under epoch", epoch, "until the context ends:", ctx.Err())
	}
	work(held.Context(), held.Lease().Epoch())
	fmt.Println("closed:", keeper.Close(ctx))
	// Output:
	// at work under epoch 1 until the context ends: <nil>
	// closed: <nil>
}
