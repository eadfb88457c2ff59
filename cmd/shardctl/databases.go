package main

import (
	"github.com/spf13/cobra"
)

func newDatabasesCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "databases",
		Short: "See, register, pause and remove the databases of a fleet",
		Long: `See and change the registry of a Sleet fleet: one object under dbs/ for each
database, empty or with settings of its own.`,
		Example: `  shardctl databases list --root s3://bucket/fleet
  shardctl databases register --root s3://bucket/fleet s3://acme-prod/tenants/0042`,
		Args: cobra.NoArgs, // so that a word that is no command is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newDatabasesNameCmd(a), newDatabasesListCmd(a), newDatabasesRegisterCmd(a), newDatabasesUnregisterCmd(a),
		newDatabasesPauseCmd(a), newDatabasesResumeCmd(a))
	return cmd
}
